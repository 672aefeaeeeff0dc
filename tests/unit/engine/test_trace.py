"""Timelines as Chrome traces, and tasks as ranges of torch's profiler."""

import json

import pytest
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from alkit import train_epoch
from alkit.schedule.clock import simulate
from alkit.schedule.task import al_pipeline
from tests.helpers import dense_model, made_batches


def test_a_trace_holds_every_task(tmp_path):
    timeline = simulate(al_pipeline(3), lambda task: 1 + task.stage, 4)
    timeline.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == ["worker 0", "worker 1", "worker 2"]
    tasks = [e for e in events if e["ph"] == "X"]
    assert len(tasks) == 3 * 3 * 4
    last = max(tasks, key=lambda e: e["ts"] + e["dur"])
    assert last["ts"] + last["dur"] == pytest.approx(1e6 * timeline.span_s)
    assert (last["name"], last["args"]["batch"]) == ("update 2", 3)


def test_the_profiler_sees_the_tasks_of_all_workers():
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as seen:
        train_epoch(dense_model(2), made_batches(2), "al_pipeline", cuts=[1])
    names = {event.key for event in seen.key_averages()}
    kinds = ("forward", "backward", "update")
    assert {f"alkit {kind} {layer}" for kind in kinds for layer in (0, 1)} <= names
