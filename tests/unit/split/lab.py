"""A server and devices on one loop that can be hurt."""

import asyncio
import copy

from alkit.split.device import Device, Job
from alkit.split.link import Lost, Refused, pair
from alkit.split.server import Server
from alkit.split.settings import Settings
from alkit.split.stream import Stream
from alkit.split.train import _record
from tests.unit.split.helpers import parts, trained, units

SIZES = [20, 17]
OPTIONS = {"epochs": 3, "batch": 8, "lr": 0.1, "dropout": 0.3}
LIMIT_S = 60  # for liveness: nothing is said about speed


class Killed(BaseException):
    """The end of a device's process."""


class Lab:
    """A server and devices.

    A hurt is (device, message it sends, what happens): "cut" takes the link away; "kill" ends the
    device, which comes back as a new one; "gone"
    ends it for good.
    """

    def __init__(self, folder, hurts=(), cut=2, micro=3, **settings):
        options = {**OPTIONS, "join_s": 20.0} | settings
        self.net = {"norm": options.pop("norm", "none"), "dropout": options.pop("dropout")}
        self.settings = Settings(4, (cut,) * len(SIZES), micros=(micro,), **options)
        self.folder, self.hurts = folder, list(hurts)
        self.sent, self.said = dict.fromkeys(range(len(SIZES)), 0), {}
        self.joined = set()
        self.server = self.new_server()

    def new_server(self):
        options = {"example": parts(SIZES)[0][0][:1], "path": self.folder / "server.pt"}
        return Server(units(**self.net), self.settings, SIZES, **options)

    def device(self, index):
        stream = Stream(*parts(SIZES)[index], self.settings, index)
        job = Job(self.settings, copy.deepcopy(units(**self.net)), stream)
        return Device(index, job, folder=self.folder, pause_s=0.02, retries=500)

    async def connect(self, index):
        if self.server is None:
            raise Lost("no server")
        near, far = pair(f"device {index}", "server", 50)
        self.joined.add(asyncio.create_task(self.server.join(far)))
        return self.hurting(near, index)

    def hurting(self, near, index):
        send = near.send

        async def sending(message):
            self.sent[index] += 1
            for hurt in [h for h in self.hurts if h[:2] == (index, self.sent[index])]:
                self.hurts.remove(hurt)
                near.close()
                if hurt[2] != "cut":
                    raise Killed(hurt[2])
            await send(message)

        near.send = sending
        return near

    async def live(self, index):
        while True:
            try:
                return await self.device(index).run(lambda: self.connect(index))
            except Killed as end:
                if end.args[0] == "gone":
                    return None
            except Refused as error:
                self.said[index] = str(error)
                return None

    def run(self):
        """Return the details of the run; devices have ended, too."""

        async def all_of_it():
            lives = [asyncio.create_task(self.live(at)) for at in range(len(SIZES))]
            await self.server.run()
            await asyncio.gather(*lives)

        asyncio.run(asyncio.wait_for(all_of_it(), LIMIT_S))
        return _record(self.server, [])


async def until(condition):
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def whole(cut=2, micro=3, **options):
    """Return an undisturbed run."""
    return trained(SIZES, cut=cut, micro=micro, **OPTIONS | options)
