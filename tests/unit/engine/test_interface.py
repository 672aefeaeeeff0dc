"""Network devices: chosen, or an error that lists those there are."""

import psutil
import pytest

from alkit.engine.interface import InterfaceError, choose_interface

NAMES = list(psutil.net_if_addrs())
LOOPBACK = next(
    n for n, a in psutil.net_if_addrs().items() if any(x.address == "127.0.0.1" for x in a)
)
SEVERAL = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


def test_one_machine_takes_loopback():
    assert choose_interface({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}) == LOOPBACK
    assert choose_interface({}) == LOOPBACK


def test_a_given_name_is_taken():
    assert choose_interface({"GLOO_SOCKET_IFNAME": LOOPBACK}) == LOOPBACK


@pytest.mark.parametrize("name", ["ib0", "^lo", LOOPBACK[:1]])
def test_a_name_that_does_not_exist_lists_those_that_do(name):
    with pytest.raises(
        InterfaceError, match=f"no network device.*There are.*{LOOPBACK}.*127.0.0.1"
    ):
        choose_interface({"GLOO_SOCKET_IFNAME": name})


def test_loopback_is_not_for_several_machines():
    with pytest.raises(InterfaceError, match="only this machine can reach"):
        choose_interface(SEVERAL | {"GLOO_SOCKET_IFNAME": LOOPBACK})
    with pytest.raises(InterfaceError, match=f"leads to {LOOPBACK}"):
        choose_interface(SEVERAL | {"MASTER_ADDR": "127.0.0.1"})


def test_a_master_that_is_not_named_or_cannot_be_reached():
    with pytest.raises(InterfaceError, match="MASTER_ADDR is not set"):
        choose_interface(SEVERAL)
    with pytest.raises(InterfaceError, match="cannot be reached"):
        choose_interface(SEVERAL | {"MASTER_ADDR": "no-such-machine.invalid"})
