"""A star of real links on one machine: network namespaces, shaped by the kernel.

    device 0   d0 ==== s0 \\
                            server (10.77.255.1)         from device to device through the server
    device 1   d0 ==== s1 /

A queueing discipline shapes what leaves an interface: the uplink's on the device's end, the
downlink's on the server's. All of it lives in namespaces of one holding process, made without any
privilege; when that process and those started inside have ended, nothing is left.
"""

import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence

SERVER_ADDRESS = "10.77.255.1"
BURST_BYTES = 16384


class LinksUnavailable(RuntimeError):
    """This machine does not allow it; says what is missing."""


class Links:
    """Links between a server and devices.

    Args:
        devices: how many.
        up_mbit, down_mbit: 10^6 bit/s; None for as fast as the machine is.

    Example:
        with Links(2, 10, 25) as links:
            subprocess.Popen(links.inside("server", ["python", "serve.py"]))
            subprocess.Popen(links.inside(0, ["python", "device.py"]))
    """

    def __init__(
        self, devices: int, up_mbit: float | None = None, down_mbit: float | None = None
    ) -> None:
        if devices < 1 or devices > 250:
            raise ValueError(f"{devices} devices: give 1 to 250")
        for tool in ("unshare", "nsenter", "ip", "tc"):
            if shutil.which(tool, path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
                raise LinksUnavailable(f"{tool} is not installed (util-linux and iproute2 have it)")
        self.devices = devices
        self.holder = self._hold()
        try:
            self._sh("mount -t tmpfs tmpfs /run && mkdir -p /run/netns && ip link set lo up")
            self._sh(f"ip addr add {SERVER_ADDRESS}/32 dev lo")
            self._sh("echo 1 > /proc/sys/net/ipv4/ip_forward")
            for at in range(devices):
                self._sh(_star(at))
                self.shape(at, up_mbit, down_mbit)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Links":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inside(self, who: int | str, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` at the "server" or on a device."""
        place = [] if who == "server" else ["ip", "netns", "exec", f"dev{self._known(who)}"]
        return [*self._enter, *place, *command]

    def shape(self, device: int, up_mbit: float | None, down_mbit: float | None) -> None:
        """Set the speeds of a device's link, also while it is in use."""
        at = self._known(device)
        for prefix, end, rate in (
            (f"ip netns exec dev{at} ", "d0", up_mbit),
            ("", f"s{at}", down_mbit),
        ):
            if rate is None:
                self._sh(f"{prefix}tc qdisc del dev {end} root 2>/dev/null || true")
                continue
            if rate <= 0:
                raise ValueError(f"a rate of {rate} Mbit/s: give more than 0, or None")
            # a burst must last for one tick of the kernel's clock and hold one packet
            burst = max(BURST_BYTES, int(rate * 1e6 / 8 / 250))
            kind = f"tbf rate {int(rate * 1e6)}bit burst {burst}b latency 100ms"
            self._sh(f"{prefix}tc qdisc replace dev {end} root {kind}")

    def traffic(self, device: int) -> tuple[int, int]:
        """Return the bytes that crossed a device's link so far, up and down, headers included."""
        shown = self._sh(f"ip netns exec dev{self._known(device)} ip -s -j link show d0")
        stats = json.loads(shown)[0]["stats64"]
        return stats["tx"]["bytes"], stats["rx"]["bytes"]

    def close(self) -> None:
        """Let go of the namespaces; they last as long as processes inside do."""
        self.holder.kill()
        self.holder.wait()
        if self.holder.stdout is not None:
            self.holder.stdout.close()

    @property
    def _enter(self) -> list[str]:
        target = f"--target={self.pid}"
        return ["nsenter", target, "--user", "--net", "--mount", "--preserve-credentials"]

    def _hold(self) -> "subprocess.Popen[str]":
        """Start the process that holds the namespaces."""
        command = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
        command += ["sh", "-c", "echo $$; exec sleep 1000000"]
        holder = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert holder.stdout is not None
        said = holder.stdout.readline().strip()
        if not said.isdecimal():
            holder.kill()
            holder.wait()
            raise LinksUnavailable(f"network namespaces are not allowed here: {said}")
        self.pid = int(said)
        return holder

    def _sh(self, line: str) -> str:
        path = "export PATH=/usr/sbin:/sbin:/usr/bin:/bin:$PATH; "
        done = subprocess.run(
            [*self._enter, "sh", "-c", path + line], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LinksUnavailable(f"{shlex.quote(line)} failed: {done.stderr.strip()}")
        return done.stdout

    def _known(self, device: int | str) -> int:
        if device not in range(self.devices):
            raise ValueError(f"no device {device!r}: there are 0 to {self.devices - 1}")
        return int(device)


def _star(at: int) -> str:
    """The commands that join device `at` to the server."""
    own = f"ip -n dev{at}"
    return " && ".join(
        (
            f"ip netns add dev{at}",
            f"{own} link set lo up",
            f"ip link add s{at} type veth peer name d0 netns dev{at}",
            f"ip addr add 10.77.{at}.1/30 dev s{at}",
            f"ip link set s{at} up",
            f"{own} addr add 10.77.{at}.2/30 dev d0",
            f"{own} link set d0 up",
            f"{own} route add default via 10.77.{at}.1",
        )
    )
