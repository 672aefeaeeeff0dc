"""Network devices: chosen, or an error that lists those there are."""

import psutil
import pytest

from alkit.engine.interface import InterfaceError, choose_interface

NAMES = list(psutil.net_if_addrs())
LOOPBACK = next(
    n for n, a in psutil.net_if_addrs().items() if any(x.address == "127.0.0.1" for x in a)
)
SEVERAL = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        {"GLOO_SOCKET_IFNAME": LOOPBACK},
        SEVERAL | {"GLOO_SOCKET_IFNAME": LOOPBACK, "MASTER_ADDR": "127.0.0.1"},  # of two agents
    ],
)
def test_one_machine_takes_loopback_or_what_is_given(given):
    assert choose_interface(given) == LOOPBACK


MISSING = f"no network device.*There are.*{LOOPBACK}.*127.0.0.1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"GLOO_SOCKET_IFNAME": name}, MISSING) for name in ("ib0", "^lo", LOOPBACK[:1])),
        (SEVERAL | {"GLOO_SOCKET_IFNAME": LOOPBACK}, "only this machine can reach"),
        (SEVERAL | {"MASTER_ADDR": "127.0.0.1"}, f"leads to {LOOPBACK}"),
        (SEVERAL, "MASTER_ADDR is not set"),
        (SEVERAL | {"MASTER_ADDR": "no-such-machine.invalid"}, "cannot be reached"),
    ],
)
def test_what_cannot_be_reached_is_said(given, message):
    with pytest.raises(InterfaceError, match=message):
        choose_interface(given)
