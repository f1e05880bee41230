"""What a model reads for one token, on each device: weights, experts, keys and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from localspec.fit import facts as of_models
from localspec.fit import placement as placing
from localspec.fit.facts import Facts, Layer
from localspec.fit.placement import Placement
from localspec.fit.weights import EXPERTS
from localspec.machine import parameters
from localspec.machine.device import Device
from localspec.models.gguf.tensors import TYPES, Tensor
from localspec.models.header import Header
from localspec.protocol.wire import ContextSettings

_TABLES = (
    "token_embd.weight",
    "position_embd.weight",
    "per_layer_token_embd.weight",
    "markov_w1.weight",
    "nextn.embed_tokens.weight",
)
"""Of these one row is read."""
_UNUSED = ("token_types.weight", "v.", "mm.", "a.")
"""One constant row, and what sees or hears."""


@dataclass(slots=True)
class Part:
    """One device's part, in bytes for a token."""

    dense: float = 0.0
    """Weights that every token reads."""
    experts: float = 0.0
    """Those of the experts that one token is sent to."""
    cache: float = 0.0
    """Keys and values of the context in use, and recurrent states, which are also written."""
    attended: float = 0.0
    """The same counted once for each head that looks at it."""
    share: float = 0.0
    """Of the model's layers."""

    @property
    def weights(self) -> float:
        return self.dense + self.experts


@dataclass(frozen=True, slots=True)
class Reading:
    """One model's token."""

    on: Mapping[str, Part]
    """By the device's name; only devices that are used."""
    family: str
    """The type of most of what is read: Q4_K."""
    experts: int = 0
    used: int = 0

    @property
    def weights(self) -> float:
        """Bytes of weights."""
        return sum(part.weights for part in self.on.values())

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.on)

    @property
    def moe(self) -> bool:
        return self.experts > 1

    def touched(self, width: int) -> float:
        """Experts of a layer that so many tokens at once are sent to, in those of one token."""
        share = self.used / self.experts
        return float((1 - (1 - share) ** width) / share)


def complete(header: Header) -> bool:
    """Whether its table names all tensors: the first file of several names its own only."""
    split = header.split
    return split is None or split.count <= 1 or len(header.tensors) >= split.tensors


def read(
    header: Header, settings: ContextSettings, devices: Sequence[Device], context: int = 0
) -> Reading:
    """With so many tokens in the context; layers lie where llama.cpp would place them."""
    facts = of_models.of(header)
    placement = placing.place(facts, settings, devices, {})
    parts = [Part() for _ in placement.names]
    types: Counter[str] = Counter()
    experts = facts.number("expert_count")
    used = min(facts.number("expert_used_count", experts), experts)
    for tensor, at, expert in _tensors(facts, placement):
        if expert and experts:
            n_bytes = tensor.n_bytes * used / experts
            parts[at].experts += n_bytes
        else:
            n_bytes = _read(tensor)
            parts[at].dense += n_bytes
        types[tensor.type_name] += int(n_bytes)
    _add_caches(parts, facts, placement, settings, context)
    for at in placement.layers[: facts.n_layer]:
        parts[at].share += 1 / max(1, facts.n_layer)
    on = {name: part for name, part in zip(placement.names, parts, strict=True) if part.weights}
    family = types.most_common(1)[0][0] if types else ""
    return Reading(on, family, experts, used)


def read_head(
    headers: tuple[Header, Header],
    kind: str,
    settings: ContextSettings,
    devices: Sequence[Device],
    context: int = 0,
) -> Reading:
    """A row of a head beside its target: without an output of its own it uses the target's."""
    if kind != "mtp":
        found = read(headers[1], settings, devices, context)
        layers = headers[1].n_layer / max(1, headers[0].n_layer)
        for part in found.on.values():
            part.share *= layers  # what a pass takes besides reading was measured for models
        lacks = {"output.weight"}
        lacks |= {"token_embd.weight"} if kind != "eagle3" else set()
        own = {tensor.name for tensor in headers[1].tensors}
        return found if lacks & own else _with_output(found, headers[0])
    facts = of_models.of(headers[0], predicting=True)
    placement = placing.place(facts, settings, devices, {})
    at, part = placement.layers[facts.n_layer], Part(share=1 / max(1, facts.n_layer))
    types: Counter[str] = Counter()
    for tensors in (facts.by_layer.get(il, {}) for il in range(facts.n_layer, facts.n_layer_all)):
        for tensor in tensors.values():
            part.dense += _read(tensor._replace(name=tensor.name.split(".", 2)[2]))
            types[tensor.type_name] += tensor.n_bytes
    layer = facts.layers[facts.n_layer]
    _, block, block_bytes = TYPES[parameters.KV_TYPES[settings.kv_type]]
    cells = min(context, facts.n_swa) if layer.window else context
    part.cache = _width(facts, layer) * cells * block_bytes / block
    part.attended = part.cache * max(1.0, layer.n_head / max(1, layer.n_head_kv))
    found = Reading({placement.names[at]: part}, types.most_common(1)[0][0] if types else "")
    own_output = f"blk.{facts.n_layer}.nextn.shared_head_head.weight"
    has = any(tensor.name == own_output for tensor in headers[0].tensors)
    return found if has else _with_output(found, headers[0])


def _with_output(head: Reading, target: Header) -> Reading:
    """The target's output matrix is read where the head lies last."""
    table = {tensor.name: tensor for tensor in target.tensors}
    matrix = table.get("output.weight") or table.get("token_embd.weight")
    name = next(reversed(head.devices))
    part = replace(head.on[name], dense=head.on[name].dense + (matrix.n_bytes if matrix else 0))
    return replace(head, on={**head.on, name: part})


def _tensors(facts: Facts, placement: Placement) -> Iterator[tuple[Tensor, int, bool]]:
    """Those a token needs, with the number of the device and whether they are experts'."""
    for il, tensors in facts.by_layer.items():
        if il >= facts.n_layer:
            continue  # layers that guess ahead
        for name, tensor in tensors.items():
            expert = EXPERTS.match(name) is not None
            away = expert and placement.experts_on_cpu
            yield tensor, placement.cpu if away else placement.layers[il], expert
    for name, tensor in facts.others.items():
        if name in _TABLES:
            yield tensor, placement.layers[0], False
        elif not name.startswith(_UNUSED):
            yield tensor, placement.output, False
    if facts.tied:
        table = facts.others["token_embd.weight"]
        yield table._replace(name="output.weight"), placement.output, False


def _read(tensor: Tensor) -> float:
    if tensor.name in _TABLES and len(tensor.shape) > 1:
        return tensor.n_bytes / tensor.shape[1]
    return tensor.n_bytes


def _add_caches(
    parts: list[Part],
    facts: Facts,
    placement: Placement,
    settings: ContextSettings,
    context: int,
) -> None:
    _, block, block_bytes = TYPES[parameters.KV_TYPES[settings.kv_type]]
    states = 2 * 4 * (facts.state_r + facts.state_s)
    for il, layer in enumerate(facts.layers[: facts.n_layer]):
        part = parts[placement.layers[il]]
        if layer.attention:
            cells = min(context, facts.n_swa) if layer.window else context
            n_bytes = _width(facts, layer) * cells * block_bytes / block
            part.cache += n_bytes
            part.attended += n_bytes * max(1.0, layer.n_head / layer.n_head_kv)
        if layer.recurrent:
            part.cache += states
            part.attended += states


def _width(facts: Facts, layer: Layer) -> int:
    values = 0 if facts.mla else layer.head_v
    return layer.n_head_kv * (layer.head_k + values)
