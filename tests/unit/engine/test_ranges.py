"""Tasks are ranges of torch's profiler."""

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from alkit import train_epoch
from tests.helpers import dense_model, made_batches


def test_the_profiler_sees_the_tasks_of_all_workers():
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as seen:
        train_epoch(dense_model(2), made_batches(2), "al_pipeline", cuts=[1])
    names = {event.key for event in seen.key_averages()}
    kinds = ("forward", "backward", "update")
    assert {f"alkit {kind} {layer}" for kind in kinds for layer in (0, 1)} <= names
