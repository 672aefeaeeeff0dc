"""A run under torchrun goes on when a rank dies, and ends in the bits of one that nothing stops."""

import pytest

from tests import fitted, machines


@pytest.mark.machines
def test_a_killed_rank_is_started_again(tmp_path):
    """Each method's run loses a rank once."""
    methods = "pipedream", "pipelearn", "elastic", "dtp"
    own = {"RUN": str(tmp_path), "DIE_AT": "1:6", "restarts": len(methods)}
    done = machines.on_one(fitted.__file__, *methods, **own)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.stem for path in tmp_path.glob("*.died")} == {*methods}
    whole = {name: fitted.digest(fitted.fit(name, ranks=2), losses=False) for name in methods}
    found = fitted.digests(done.stdout)
    assert found == {name: dict.fromkeys("01", bits) for name, bits in whole.items()}
