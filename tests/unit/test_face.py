"""The public face: names and parameters that users write stay as they are."""

import inspect
import subprocess
import sys
import threading

import pytest
import torch

import alkit
from tests.helpers import dense_model, made_batches

# what may be given, in this order where it may be given by place; more may follow
FACE = {
    "ENC": "f b loss",
    "AE": "g h loss",
    "AL": "enc ae lr optimizer",
    "ALModel": "layers label_shortcut",
    "BPModel": "blocks lr loss optimizer",
    "to_al": "blocks num_classes sample recipe code_dim lr pool optimizer",
    "to_bp": "blocks num_classes sample head lr pool optimizer",
    "one_hot": "labels num_classes",
    "launch": "function arguments ranks threads patience_s",
    "set_device": "model devices",
    "train_epoch": "model batches mode workers threads cuts capacity seed executor",
    "fit": "model train validation test method loss optimizer lr scheduler epochs batch_size",
    "evaluate": "model part depth batch_size",
    "AL.forward": "self x y",
    "AL.backward": "self",
    "AL.update": "self",
    "AL.backward_and_update": "self",
    "AL.inference": "self x path",
    "AL.set_lr": "self groups lr",
    "AL.loss": "self",
    "ALModel.predict": "self x depth",
    "delayed.train_epoch": "pipeline batches method executor micro threads workers",
}


@pytest.mark.parametrize("path", FACE)
def test_names_and_their_parameters(path):
    thing = alkit
    for name in path.split("."):
        thing = getattr(thing, name)
    names = iter(inspect.signature(thing).parameters)
    missing = [wanted for wanted in FACE[path].split() if wanted not in names]
    assert not missing, f"{path} has no {missing}, or not in this order"


def test_the_loop_of_threads_and_letters():
    """The loop that the first users wrote: a thread a layer, then inference by letters."""
    model = dense_model(3)
    for x, y in made_batches(2):
        threads = []
        for layer in model:
            x, y = layer(x, y)
            threads.append(threading.Thread(target=layer.backward_and_update))
            threads[-1].start()
        for thread in threads:
            thread.join()
    x, _ = made_batches(1)[0]
    for layer in model:
        x = layer.inference(x, "f")
    code = model[-1].inference(x, "b")
    for index in reversed(range(len(model))):
        code = model[index].inference(code, "h")
    assert torch.equal(code, model.predict(made_batches(1)[0][0]))
    assert len(model[0].loss()) == 2


METHODS = ("delayed", "dtp", "elastic", "split")


@pytest.mark.parametrize("method", METHODS)
def test_importing_one_method_imports_no_other(method):
    code = f"import sys, alkit; assert 'torch' not in sys.modules; import alkit.{method}"
    code += "; assert 'torch._dynamo' not in sys.modules"  # the compiler takes seconds
    code += "; print(*{name.split('.')[1] for name in sys.modules if name.startswith('alkit.')})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & set(METHODS) == {method}
