"""Who is to do what in a round: those of the plan, or all who are wanted and can come."""

from collections.abc import Sequence

from alkit.split.member import Member
from alkit.split.rounds import Assignment, Attendance
from alkit.split.settings import Settings
from alkit.split.stream import round_steps


def ordered(
    settings: Settings,
    members: Sequence[Member],
    number: int,
    plan: Sequence[Attendance] | None = None,
) -> Attendance:
    """Say who is to do what in a round.

    Nobody waits for a device that was dropped and is gone, if the others are a quorum.

    Args:
        plan: attendances of a recorded run, which is done again.
    """
    found = Attendance()
    for member in members:
        own = _order(settings, member, number) if plan is None else plan[number].get(member.index)
        if own is not None and len(own.steps) and not member.out:
            found[member.index] = own
    gone = [at for at in found if members[at].dropped and members[at].link is None]
    if len(found) - len(gone) >= settings.quorum:
        for at in gone:
            del found[at]
    return found


def _order(settings: Settings, member: Member, number: int) -> Assignment:
    cut, micro = member.choice
    return Assignment(cut, micro, round_steps(settings, member.samples, micro, number), fresh=True)
