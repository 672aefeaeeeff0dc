"""Links of the kernel: shaped and counted. Their speeds are in `make soak`."""

import subprocess
import sys
import time

import pytest

from studies.split.links import SERVER_ADDRESS, Links, LinksUnavailable

SERVER = """
import socket
with socket.create_server(("", 5001)) as server:
    peer, _ = server.accept()
    count = 0
    while piece := peer.recv(1 << 16):
        count += len(piece)
    print(count)
"""
DEVICE = f"""
import socket, time
for _ in range(50):
    try:
        link = socket.create_connection(("{SERVER_ADDRESS}", 5001), timeout=5)
        break
    except OSError:
        time.sleep(0.1)
start = time.perf_counter()
link.sendall(bytes(SIZE))
link.shutdown(socket.SHUT_WR)
link.recv(1)
print(time.perf_counter() - start)
"""


@pytest.fixture(scope="module")
def links():
    try:
        made = Links(2, 20, 40)
    except LinksUnavailable as error:
        pytest.skip(f"no real links here: {error}")
    yield made
    made.close()


def sent(links, size: int, device: int = 0) -> float:
    """Send bytes up from a device; return the seconds that it took."""
    options = {"stdout": subprocess.PIPE, "text": True}
    serve = subprocess.Popen(links.inside("server", [sys.executable, "-c", SERVER]), **options)
    code = DEVICE.replace("SIZE", str(size))
    done = subprocess.run(
        links.inside(device, [sys.executable, "-c", code]), **options, check=True, timeout=60
    )
    assert int(serve.communicate(timeout=20)[0]) == size
    return float(done.stdout)


def test_bytes_cross_the_link_and_are_counted(links):
    before = links.traffic(0)
    seconds = sent(links, 500_000)
    up = links.traffic(0)[0] - before[0]
    assert 500_000 <= up < 560_000
    assert seconds > 0.8 * 8 * 500_000 / 20e6  # it can't be faster than the line


@pytest.mark.machines
@pytest.mark.parametrize(("rate", "size"), [(10, 2_500_000), (50, 12_500_000)])
def test_speed_is_as_shaped(links, rate, size):
    links.shape(0, rate, rate)
    start = time.perf_counter()
    goodput = 8 * size / sent(links, size) / 1e6
    assert 0.9 * rate < goodput < rate, time.perf_counter() - start
