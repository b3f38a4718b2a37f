"""The PyTorch side of e2e.py: trains a Hugging Face Llama on E2E, plainly and in each mode of Opacus.

e2e.py starts this file once for each contender, so that each has its own peak memory:

    python3 peers/_torch_e2e.py JOB

JOB is JSON: see `main`. The script prints one JSON object. `check` compares the clipped sums of
each mode of Opacus with a loop over single examples.
"""

import json
import math
import pathlib
import sys
import time
import warnings

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

IGNORED = -100


class Texts:
    """Examples ` source <bos> target <eos>`, contiguous in one tensor.

    Python lists of numbers would take ten times the memory.
    """

    def __init__(self, folder, path, limit, most=None):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        begin, end = (config[key][0] if isinstance(config[key], list) else config[key]
                      for key in ("bos_token_id", "eos_token_id"))
        lines = [line.split("||", 1) for line in pathlib.Path(path).read_text().split("\n") if line.strip()]
        pieces, bounds, self.firsts = [], [0], []
        for at in range(0, len(lines), 1000):
            some = lines[at:at + 1000]
            sources = tokenizer.encode_batch_fast([f" {source} " for source, _ in some], add_special_tokens=False)
            targets = tokenizer.encode_batch_fast([f" {target.strip()} " for _, target in some], add_special_tokens=False)
            for source, target in zip(sources, targets):
                ids = [*source.ids, begin, *target.ids, end]
                if len(ids) < limit and (most is None or len(self.firsts) < most):
                    pieces.append(torch.tensor(ids, dtype=torch.int32))
                    bounds.append(bounds[-1] + len(ids))
                    self.firsts.append(len(source.ids) + 1)
        self.ids, self.bounds = torch.cat(pieces), bounds

    def __len__(self):
        return len(self.firsts)

    def length(self, i):
        return self.bounds[i + 1] - self.bounds[i]

    def targets(self, i):
        return self.length(i) - self.firsts[i]

    def batch(self, some):
        """Returns ids, the positions whose next id is predicted, and these next ids.

        All are padded on the right to the longest; under a causal mask no other position sees it.
        """
        ids = torch.zeros(len(some), max(map(self.length, some)), dtype=torch.long)
        places = torch.zeros(len(some), max(map(self.targets, some)), dtype=torch.long)
        asked = torch.full_like(places, IGNORED)
        for row, i in enumerate(some):
            own, first = self.ids[self.bounds[i]:self.bounds[i + 1]], self.firsts[i]
            ids[row, :len(own)] = own
            places[row, :len(own) - first] = torch.arange(first - 1, len(own) - 1)
            asked[row, :len(own) - first] = own[first:]
        return ids, places, asked

    def portions(self, some, most):
        """Micro-batches of examples of similar length: the sum over a lot does not depend on the order."""
        some = sorted(some, key=self.length)
        count = math.ceil(len(some) / most)
        return [some[len(some) * k // count:len(some) * (k + 1) // count] for k in range(count)]


class Loss:
    """Mean cross-entropy of each example over its targets. Opacus reads `reduction`."""

    reduction = "sum"

    def __call__(self, logits, asked):
        each = F.cross_entropy(logits.flatten(0, 1), asked.flatten(), reduction="none", ignore_index=IGNORED)
        return each.view(asked.shape).sum(1) / (asked != IGNORED).sum(1)


def load(folder, own_head):
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    if own_head:
        untie(model)
    return model.train()


def untie(model):
    if model.lm_head.weight is model.model.embed_tokens.weight:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())


def logits(model, ids, places):
    """Logits only at predicted positions: the head is more than half of the work of a small model."""
    return model(ids, logits_to_keep=places, use_cache=False).logits


def nll(model, texts):
    """Negative log-likelihood per target token."""
    model.eval()
    loss, count = 0.0, 0
    with torch.no_grad():
        for some in texts.portions(range(len(texts)), 16):
            ids, places, asked = texts.batch(some)
            found = F.cross_entropy(logits(model, ids, places).flatten(0, 1), asked.flatten(), reduction="sum",
                                    ignore_index=IGNORED)
            loss, count = loss + float(found), count + int((asked != IGNORED).sum())
    model.train()
    return loss / count


def rms_norm(layer, activations, backprops):
    """Per-example gradients of LlamaRMSNorm.

    Opacus has a rule for PyTorch's RMSNorm only, and would use functorch for Llama's.
    """
    x = activations[0]
    normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon)
    return {layer.weight: torch.einsum("n...i,n...i->ni", normal, backprops)}


class Plain:
    """PyTorch, not private."""

    def __init__(self, model, make, job):
        self.model, self.loss, self.optimizer, self.lot = model, Loss(), make(model.parameters()), job["lot"]

    def portion(self, ids, places, asked, last):
        self.loss(logits(self.model, ids, places), asked).sum().backward()

    def summed(self, p):
        return p.grad

    def update(self):
        for p in self.model.parameters():
            p.grad /= self.lot
        self.optimizer.step()
        self.optimizer.zero_grad()


class Opacus:
    """One mode of Opacus. `loss_reduction` is "sum": sums are divided by the expected lot size."""

    def __init__(self, mode, model, make, job):
        from opacus.grad_sample import GradSampleModuleFastGradientClipping, register_grad_sampler
        from opacus.grad_sample.utils import prepare_module
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
        from opacus.validators import ModuleValidator

        if mode not in ("functorch", "hooks-functorch-norm"):
            register_grad_sampler(LlamaRMSNorm)(rms_norm)
        ModuleValidator.validate(model, strict=True)
        self.twice = mode in ("ghost", "fast")
        noise = {"noise_multiplier": job["sigma"], "max_grad_norm": job["clip"], "loss_reduction": "sum",
                 "expected_batch_size": None}
        if self.twice:
            self.model = GradSampleModuleFastGradientClipping(
                model, loss_reduction="sum", max_grad_norm=job["clip"], use_ghost_clipping=mode == "ghost")
            self.optimizer = DPOptimizerFastGradientClipping(make(self.model.parameters()), **noise)
            self.loss = DPLossFastGradientClipping(self.model, self.optimizer, Loss(), loss_reduction="sum")
        else:
            self.model = prepare_module(model, "hooks" if mode.startswith("hooks") else mode, loss_reduction="sum")
            self.optimizer, self.loss = DPOptimizer(make(self.model.parameters()), **noise), Loss()
        self.optimizer.attach_step_hook(self.divide)
        self.lot = job["lot"]

    def divide(self, optimizer):
        for p in optimizer.params:
            p.grad /= self.lot

    def portion(self, ids, places, asked, last):
        # As BatchMemoryManager of Opacus does, which would draw lots with rate 1/ceil(N/lot).
        self.optimizer.signal_skip_step(do_skip=not last)
        loss = self.loss(logits(self.model, ids, places), asked)
        (loss if self.twice else loss.sum()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def summed(self, p):
        return p.summed_grad

    def update(self):
        """Nothing to do: the last portion has made the update."""


MODES = ("hooks", "hooks-functorch-norm", "functorch", "ew", "fast", "ghost")


def contender(name, model, make, job):
    return Plain(model, make, job) if name == "torch" else Opacus(name, model, make, job)


def quiet():
    # Hooks of Opacus on layers whose inputs are ids cause a warning of PyTorch at every start. The
    # gradients are checked below.
    warnings.filterwarnings("ignore", message=".*backward hook.*")
    warnings.filterwarnings("ignore", message=".*autocast.*")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def peak_kilobytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def main():
    job = json.loads(sys.argv[1])
    quiet()
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    train = Texts(job["model"], job["train"], job["limit"])
    whole = Texts(job["model"], job["validation"], job["limit"])
    validation = Texts(job["model"], job["validation"], job["limit"], most=job["examples"])
    model = load(job["model"], job["own_head"])
    before = nll(model, validation)
    one = contender(job["contender"], model,
                    lambda params: torch.optim.Adam(params, lr=job["rate"], betas=(0.9, 0.999), eps=1e-8, fused=True),
                    job)
    seconds, lots = [], []
    for _ in range(job["steps"]):
        began = time.perf_counter()
        if job["contender"] == "torch":
            lot = torch.randperm(len(train))[:job["lot"]].tolist()
        else:
            lot = (torch.rand(len(train)) < job["lot"] / len(train)).nonzero().flatten().tolist()
            if not lot:
                sys.exit("empty lot: Opacus needs at least one example; increase --lot")
        portions = train.portions(lot, job["micro_batch"])
        for k, some in enumerate(portions):
            one.portion(*train.batch(some), last=k + 1 == len(portions))
        one.update()
        seconds.append(time.perf_counter() - began)
        lots.append(len(lot))
    found = {"records": len(train), "validation_tokens": sum(map(whole.targets, range(len(whole)))),
             "parameters": sum(p.numel() for p in model.parameters()), "before": before,
             "seconds": seconds, "lots": lots, "after": nll(model, validation), "peak_kb": peak_kilobytes()}
    if job["contender"] != "torch":
        from opacus.accountants import PRVAccountant
        accountant = PRVAccountant()
        accountant.history = [(job["sigma"], job["lot"] / len(train), job["steps"])]
        found["epsilon"] = accountant.get_epsilon(job["delta"])
    print(json.dumps(found), flush=True)


def check(folder, path, limit):
    """Checks which modes of Opacus support a Llama, with a tied and with an untied head.

    Their clipped sums over two portions must equal those of a loop over single examples, in double
    precision, with a bound that clips some examples.
    """
    quiet()
    texts = Texts(folder, path, limit, most=6)
    made = lambda params: torch.optim.SGD(params, lr=0.0)
    wrong = []
    for own_head in (False, True):
        model = load(folder, own_head).double()
        loop = Plain(model, made, {"lot": 1})
        singles = []
        for i in range(len(texts)):
            loop.portion(*texts.batch([i]), last=True)
            singles.append([p.grad.clone() for p in model.parameters()])
            model.zero_grad()
        norms = torch.stack([sum((g**2).sum() for g in one).sqrt() for one in singles])
        bound = float(norms.median())
        factors = (bound / (norms + 1e-6)).clamp(max=1.0)  # Opacus divides by the norm plus 1e-6
        assert 0 < int((factors < 1).sum()) < len(texts), norms
        expected = [sum(f * one[k] for f, one in zip(factors, singles)) for k in range(len(singles[0]))]
        for mode in MODES:
            from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
            for kind in (GradSampleModule, GradSampleModuleFastGradientClipping):
                kind.GRAD_SAMPLERS.pop(LlamaRMSNorm, None)
            said = f"{mode}, {'untied head' if own_head else 'tied head'}: "
            try:
                model = load(folder, own_head).double()
                one = Opacus(mode, model, made, {"sigma": 0.0, "clip": bound, "lot": 1})
                got = []
                one.optimizer.attach_step_hook(lambda optimizer: got.extend(p.grad.clone() for p in optimizer.params))
                one.portion(*texts.batch([0, 1, 2, 3]), last=False)
                one.portion(*texts.batch([4, 5]), last=True)
            except Exception as failed:
                print(f"{said}FAILS: {type(failed).__name__}: {str(failed).strip().splitlines()[0][:200]}", flush=True)
                continue
            worst = max(float((a - b).norm() / b.norm()) for a, b in zip(got, expected))
            wrong += [said] if not worst < 1e-6 else []
            print(f"{said}differs from the sum over single examples by at most {worst:.1e} of its norm", flush=True)
    if wrong:
        sys.exit("wrong clipped sums: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
