"""x"""
from alkit.split.channel import Channel
def agreed(settings, units, streams, group, checkpoint):
    if group.rank: chans = [Channel(0, "downlink", 1)]
    else: chans = [Channel(at + 1, "uplink", 0) for at in range(settings.devices)]
    for c in chans: c.meet(asks=group.is_first)
    return settings, chans
