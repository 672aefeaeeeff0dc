"""A link within a process: whoever waits for it is woken when it ends, on either side."""

import asyncio

import pytest

from alkit.split.link import Lost, pair
from alkit.split.wire import Message

LIMIT_S = 20.0  # of liveness


@pytest.mark.parametrize("ends", ["near", "far"])
def test_who_receives_is_woken_when_a_side_ends(ends):
    async def work():
        near, far = pair()
        waiting = asyncio.create_task(near.receive("act"))
        await asyncio.sleep(0)
        (near if ends == "near" else far).close()
        with pytest.raises(Lost):
            await asyncio.wait_for(waiting, LIMIT_S)
        near.close()

    asyncio.run(work())


@pytest.mark.parametrize("ends", ["near", "far"])
def test_who_sends_more_than_there_is_room_for_is_woken(ends):
    async def work():
        near, far = pair(ahead=1)
        far._reader.cancel()  # a peer that takes nothing

        async def fill():
            while True:
                await near.send(Message("act"))

        waiting = asyncio.create_task(fill())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        (near if ends == "near" else far).close()
        with pytest.raises(Lost):
            await asyncio.wait_for(waiting, LIMIT_S)
        near.close()
        far.close()

    asyncio.run(work())
