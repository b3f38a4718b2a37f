"""The PyTorch engine: private training of any `torch.nn.Module`.

`Engine` computes per-example losses, gradient norms and weighted sums. The curator, in Rust, draws
lots, clips, adds noise, keeps the ledger and optimizes.

| to find | look in |
|---|---|
| training with a loop, callbacks | `fit`, `callbacks` |
| the engine | `engine` |
| norms, weighted sums and the bounds of rounding | `forms`, `outer` |
| layer kinds | `layers` |
| hooks of a forward and backward pass | `passes` |
| parameters without a registered layer | `generic` |
| tests of a module, choice of a path | `tracing` |
| what is refused; roles | `structure` |
| probe records and validation | `records` |
| causal language models of `transformers` | `language` |
"""

from .callbacks import Callback, TrainState
from .engine import ISOLATION, Engine
from .fit import fit
from .forms import Direct, Form, Lookup
from .language import CausalLanguageModel
from .layers import register_layer
from .losses import supervised
from .outer import Outer
from .structure import Trainable

__all__ = [
    "ISOLATION",
    "Callback",
    "CausalLanguageModel",
    "Direct",
    "Engine",
    "Form",
    "Lookup",
    "Outer",
    "TrainState",
    "Trainable",
    "fit",
    "register_layer",
    "supervised",
]
