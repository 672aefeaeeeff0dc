"""Which network device gloo is to use, said before anything hangs.

GLOO_SOCKET_IFNAME set      every name in it must be there, with an address
all ranks on one machine    loopback
several machines            the device whose address the kernel takes to reach MASTER_ADDR
"""

import os
import socket
from collections.abc import Mapping

import psutil

VARIABLE = "GLOO_SOCKET_IFNAME"


class InterfaceError(ValueError):
    """No network device fits."""


def choose_interface(environment: Mapping[str, str] | None = None) -> str:
    """Return the name, or names with commas between them, to put into GLOO_SOCKET_IFNAME.

    Args:
        environment: of the job: WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, as torchrun sets them;
            default this process's.
    Raises:
        InterfaceError: a name that does not exist, loopback for several machines, or a master that
            cannot be reached; lists the devices there are.
    """
    given = os.environ if environment is None else environment
    several = on_several_machines(given)
    devices = _devices()
    names = given.get(VARIABLE, "")
    if names:
        for name in names.split(","):
            if not devices.get(name):
                raise InterfaceError(
                    f"{VARIABLE} names {name!r}, which is no network device with an address here."
                    f" {_listed(devices)}. Give exact names, or leave the variable away"
                )
        # agents that meet on loopback are of one machine
        several = several and not _is_loopback([given.get("MASTER_ADDR", "")])
        if several and all(_is_loopback(devices[name]) for name in names.split(",")):
            raise InterfaceError(
                f"{VARIABLE} is {names!r}, which only this machine can reach, and the job has"
                f" several machines. {_listed(devices)}"
            )
        return names
    if not several:
        return next(name for name, addresses in devices.items() if _is_loopback(addresses))
    return _towards(given.get("MASTER_ADDR", ""), devices)


def on_several_machines(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether torchrun has started the ranks of a job on more machines than this one."""
    given = os.environ if environment is None else environment
    ranks = given.get("WORLD_SIZE", "1")
    return ranks != given.get("LOCAL_WORLD_SIZE", ranks)


def _towards(master: str, devices: Mapping[str, list[str]]) -> str:
    if not master:
        raise InterfaceError("MASTER_ADDR is not set: give the first machine's name or address")
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            master, 1, type=socket.SOCK_DGRAM
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # chooses a way; nothing is sent
            own = probe.getsockname()[0]
    except OSError as error:
        raise InterfaceError(
            f"MASTER_ADDR is {master!r}, which cannot be reached: {error}. {_listed(devices)}"
        ) from error
    found = next((name for name, addresses in devices.items() if own in addresses), None)
    if found is None or _is_loopback(devices[found]):
        raise InterfaceError(
            f"MASTER_ADDR is {master!r}, which leads to {found or own}: other machines need an"
            f" address of this one that they can reach. {_listed(devices)}"
        )
    return found


def _devices() -> dict[str, list[str]]:
    """Return the addresses of every network device."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [each.address.split("%")[0] for each in addresses if each.family in families]
        for name, addresses in psutil.net_if_addrs().items()
    }


def _is_loopback(addresses: list[str]) -> bool:
    return any(address.startswith("127.") or address == "::1" for address in addresses)


def _listed(devices: Mapping[str, list[str]]) -> str:
    up = psutil.net_if_stats()
    rows = [
        f"{name} ({', '.join(addresses) or 'no address'},"
        f" {'up' if name in up and up[name].isup else 'down'})"
        for name, addresses in devices.items()
    ]
    return "There are " + "; ".join(rows)
