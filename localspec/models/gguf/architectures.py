"""The model architectures of the pinned llama.cpp: one table of what each has.

To support another architecture, add its row to `ARCHITECTURES`. Other files ask the
sets after the table, which have the names of the rows with one property.

Sources: src/llama-arch.cpp (LLM_ARCH_NAMES, llm_arch_is_recurrent, llm_arch_is_hybrid,
llm_arch_supports_rs_rollback, llm_arch_supports_sm_tensor) and src/models/*.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct


def name_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Window(Struct, frozen=True):
    """Sliding-window attention: which layers have it, unless the file says so itself.

    With `every` 6, layers 0 to 4 have a window and layer 5 attends to the whole text,
    then 6 to 10 and 11, and so on. With `is_dense_first` too, layer 0 attends to the
    whole text and 1 to 5 have a window.
    """

    every: int = 0
    """One layer of so many has full attention; 0: only the file says which."""
    is_dense_first: bool = False
    """Whether it is the first of them, not the last."""
    default_size: int = 0
    """Tokens, if the file does not say."""
    is_every_attention_layer: bool = False
    """Whether all layers with attention have it, the others being recurrent."""


class Architecture(Struct, frozen=True, kw_only=True):
    """A model that writes text from left to right, or a head that drafts for one."""

    head: Literal["", "eagle3", "block", "assistant"] = ""
    """How a head drafts, which is no model by itself; empty for a model.

    `eagle3`: token after token, from three layers of its target. `block`: several
    tokens in one pass. `assistant`: token after token, from its target's KV cache.
    """
    memory: Literal["attention", "recurrent", "hybrid"] = "attention"
    """What it remembers of the text.

    `attention`: a KV cache. `recurrent`: a state from which rejected tokens cannot be
    removed. `hybrid`: layers of both kinds.
    """
    rolls_back: bool = False
    """Whether a hybrid can return to a checkpoint of its recurrent state."""
    window: Window | None = None
    flags_windows: bool = False
    """Whether the file must flag at least one layer as one with a window."""
    hidden_states: Literal["", "inputs", "with the last"] = ""
    """What a head can read of it, as far as its graph exposes it (t_layer_inp).

    `inputs`: the inputs of all layers. `with the last`: also the last layer's output,
    as layer n_layer. Empty: nothing; llama.cpp aborts if it is asked. qwen4exp has
    nothing here because its inputs are several times wider than llama.cpp assumes.
    """
    mtp: Literal["", "one", "several"] = ""
    """How many MTP layers of a file llama.cpp can run.

    `several` draft one after the other. With more than it can run, llama.cpp aborts.
    """
    has_assistant: bool = False
    """Whether an assistant reads its last output, as an MTP layer does."""
    has_gated_attention: bool = False
    """Whether queries come with a gate of the same width."""
    has_gated_ff: bool = True
    """Whether the feed-forward part has three matrices, not two."""
    allows_one_expert: bool = False
    """Whether a file may say that it has one expert, which means none."""
    has_fused_matrices: bool = False
    """Whether one matrix makes queries, keys and values, and one gate and up."""
    has_fused_expert_gate: bool = False
    """Whether one matrix makes gate and up of an expert."""
    has_dense_beside_experts: bool = False
    """Whether a layer with experts has an ordinary feed-forward part too."""
    has_mxfp4_experts: bool = False
    """Whether all published files have their experts in MXFP4, whatever their name."""
    n_layers_with_own_kv: int = 0
    """Layers with a KV cache, which later ones read; 0: the file says how many do."""
    borrows_output_matrix: bool = False
    """Whether a head without an output matrix uses its target's.

    It does so even if it has token embeddings.
    """
    always_copies_tied_table: bool = False
    """Whether llama.cpp loads token embeddings that are the output matrix twice.

    It does so even if both are on the CPU.
    """
    needs_one_kv_type: bool = False
    """Whether keys and values must have the same type."""
    supports_flash_attention: bool = True
    can_trim_vocabulary: bool = False
    """Whether it was tried with `make-draft --vocab`.

    Others may use a token's id for more than its embedding.
    """


_PLAIN = name_set(
    "arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm "
    "codeshell cogvlm command-r dbrx deci deepseek deepseek2-ocr dots1 ernie4_5 "
    "ernie4_5-moe exaone falcon gemma glm4 gpt2 gptj gptneox granitemoe "
    "graniteswitch grovemoe hrm_text hunyuan-moe hy_v4 internlm2 jais jais2 "
    "maincoder minicpm minicpm3 minimax-m3 mistral3 mistral4 mpt nemotron olmo "
    "olmoe openelm orion paddleocr pangu-embedded phi2 phimoe plamo plm qwen "
    "qwen2moe qwen2vl qwen3vl qwen3vlmoe refact seed_oss smollm3 stablelm starcoder "
    "starcoder2 talkie xverse "
)
"""Attention in every layer, and nothing that drafting could use."""
ARCHITECTURES: Mapping[str, Architecture] = {
    **dict.fromkeys(_PLAIN, Architecture()),
    "afmoe": Architecture(window=Window(every=4)),
    "apertus": Architecture(has_gated_ff=False),
    "cohere2": Architecture(window=Window(every=4)),
    "cohere2moe": Architecture(window=Window(every=4, is_dense_first=True), mtp="one"),
    "deepseek2": Architecture(mtp="one"),
    "deepseek32": Architecture(mtp="one"),
    "dots3note": Architecture(window=Window(), flags_windows=True),
    "exaone-moe": Architecture(window=Window(every=4)),
    "exaone4": Architecture(window=Window(every=4)),
    "gemma2": Architecture(
        window=Window(every=2, default_size=4096), can_trim_vocabulary=True
    ),
    "gemma3": Architecture(window=Window(every=6), can_trim_vocabulary=True),
    "gemma3n": Architecture(window=Window(every=5), n_layers_with_own_kv=20),
    "gemma4": Architecture(
        window=Window(every=6),
        flags_windows=True,
        hidden_states="inputs",
        has_assistant=True,
        has_dense_beside_experts=True,
        has_fused_expert_gate=True,
        always_copies_tied_table=True,
    ),
    "glm-dsa": Architecture(mtp="one"),
    "glm4moe": Architecture(mtp="one"),
    "gpt-oss": Architecture(
        window=Window(every=2), hidden_states="inputs", has_mxfp4_experts=True
    ),
    "granite": Architecture(can_trim_vocabulary=True),
    "granite_swa": Architecture(window=Window(), flags_windows=True),
    "grok": Architecture(supports_flash_attention=False),
    "hunyuan-dense": Architecture(hidden_states="inputs", allows_one_expert=True),
    "hunyuan_vl": Architecture(hidden_states="inputs", allows_one_expert=True),
    "hy_v3": Architecture(mtp="several"),
    "laguna": Architecture(window=Window(every=4, is_dense_first=True)),
    "llama": Architecture(hidden_states="inputs", can_trim_vocabulary=True),
    "llama4": Architecture(window=Window(every=4, default_size=8192)),
    "maple": Architecture(window=Window(), flags_windows=True),
    "mellum": Architecture(window=Window(every=4)),
    "mimo2": Architecture(
        window=Window(),
        flags_windows=True,
        hidden_states="with the last",
        mtp="several",
    ),
    "minimax-m2": Architecture(hidden_states="inputs"),
    "muse-glimmer": Architecture(window=Window(every=4), hidden_states="inputs"),
    "nanbeige": Architecture(hidden_states="inputs"),
    "olmo2": Architecture(window=Window(every=4)),
    "phi3": Architecture(can_trim_vocabulary=True, has_fused_matrices=True),
    "plamo3": Architecture(window=Window(every=8)),
    "qwen2": Architecture(can_trim_vocabulary=True),
    "qwen3": Architecture(hidden_states="inputs", can_trim_vocabulary=True),
    "qwen3moe": Architecture(hidden_states="inputs"),
    "smallthinker": Architecture(
        window=Window(every=4, is_dense_first=True, default_size=4096)
    ),
    "spark2_5": Architecture(window=Window(), flags_windows=True),
    "step35": Architecture(window=Window(), flags_windows=True, mtp="several"),
    "bailingmoe3": Architecture(
        memory="hybrid", rolls_back=True, hidden_states="inputs", mtp="one"
    ),
    "deepseek4": Architecture(
        memory="hybrid",
        rolls_back=True,
        hidden_states="with the last",
        needs_one_kv_type=True,
    ),
    "falcon-h1": Architecture(memory="hybrid"),
    "glm5-next": Architecture(memory="hybrid", rolls_back=True, mtp="one"),
    "granitehybrid": Architecture(memory="hybrid"),
    "jamba": Architecture(memory="hybrid"),
    "kimi-k3": Architecture(memory="hybrid", rolls_back=True),
    "kimi-linear": Architecture(memory="hybrid"),
    "lfm2": Architecture(
        memory="hybrid",
        rolls_back=True,
        hidden_states="inputs",
        window=Window(is_every_attention_layer=True),
    ),
    "lfm2moe": Architecture(
        memory="hybrid",
        rolls_back=True,
        hidden_states="inputs",
        window=Window(is_every_attention_layer=True),
    ),
    "minimax-01": Architecture(memory="hybrid", hidden_states="inputs"),
    "nemotron_h": Architecture(
        memory="hybrid",
        rolls_back=True,
        hidden_states="with the last",
        has_gated_ff=False,
    ),
    "nemotron_h_moe": Architecture(
        memory="hybrid",
        rolls_back=True,
        hidden_states="with the last",
        mtp="one",
        has_gated_ff=False,
    ),
    "plamo2": Architecture(memory="hybrid"),
    "qwen35": Architecture(
        memory="hybrid",
        rolls_back=True,
        hidden_states="inputs",
        mtp="one",
        has_gated_attention=True,
    ),
    "qwen35moe": Architecture(
        memory="hybrid",
        rolls_back=True,
        hidden_states="inputs",
        mtp="one",
        has_gated_attention=True,
    ),
    "qwen3next": Architecture(
        memory="hybrid", hidden_states="inputs", mtp="one", has_gated_attention=True
    ),
    "qwen4exp": Architecture(memory="hybrid", rolls_back=True),
    "arwkv7": Architecture(memory="recurrent"),
    "mamba": Architecture(memory="recurrent"),
    "mamba2": Architecture(memory="recurrent"),
    "rwkv6": Architecture(memory="recurrent"),
    "rwkv6qwen2": Architecture(memory="recurrent"),
    "rwkv7": Architecture(memory="recurrent"),
    "dflash": Architecture(head="block", window=Window(), flags_windows=True),
    "eagle3": Architecture(head="eagle3", borrows_output_matrix=True),
    "gemma4-assistant": Architecture(head="assistant", flags_windows=True),
}

# Architectures that this program refuses, by the reason.

DIFFUSION = name_set("dream llada llada-moe rnd1")
"""They write no text from left to right."""
ENCODERS = name_set(
    "bert eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llama-embed "
    "modern-bert neo-bert nomic-bert nomic-bert-moe t5encoder"
)
"""They output vectors, not text."""
ENCODER_DECODERS = frozenset({"t5"})
IMAGE_PARTS = frozenset({"clip"})
"""The file beside a model that reads images (mmproj)."""
SPEECH = name_set("pockettts qwen3tts wavtokenizer-dec")
OTHER_SPEECH = frozenset({"whisper"})
"""Published as GGUF for other programs: llama.cpp does not know it."""
IMAGE_GENERATORS = name_set(
    "aura cosmos flux hidream hyvid ltxv lumina2 qwen_image sd1 sd3 sdxl wan"
)
"""As OTHER_SPEECH."""

KNOWN = frozenset(ARCHITECTURES).union(
    DIFFUSION, ENCODERS, ENCODER_DECODERS, IMAGE_PARTS, SPEECH
)
"""All that llama.cpp knows."""


WITHOUT_TENSOR_SPLIT = name_set(
    "bailingmoe3 bitnet deepseek2 deepseek32 dots3note falcon-h1 gemma3n glm-dsa "
    "glm5-next granitehybrid grok hy_v4 jamba kimi-k3 kimi-linear mamba mamba2 "
    "minicpm3 minimax-01 minimax-m2 minimax-m3 mistral4 mpt nemotron_h "
    "nemotron_h_moe olmo2 olmoe plamo2 qwen4exp"
)
"""Those whose tensors cannot be split between GPUs (llm_arch_supports_sm_tensor)."""


def find_architecture(name: str) -> Architecture:
    """The row of an architecture; of an unknown one what most have."""
    return ARCHITECTURES.get(name, _ORDINARY)


_ORDINARY = Architecture()


def _select(has: Callable[[Architecture], bool]) -> frozenset[str]:
    return frozenset(name for name, row in ARCHITECTURES.items() if has(row))


DRAFT_HEADS = _select(lambda row: row.head != "")
EAGLE3_HEADS = _select(lambda row: row.head == "eagle3")
BLOCK_HEADS = _select(lambda row: row.head == "block")
ASSISTANTS = _select(lambda row: row.head == "assistant")
ATTENTION_ONLY = _select(lambda row: row.memory == "attention") - DRAFT_HEADS
RECURRENT = _select(lambda row: row.memory == "recurrent")
HYBRID = _select(lambda row: row.memory == "hybrid")
ROLLBACK = _select(lambda row: row.rolls_back)
EXPOSING_HIDDEN_STATES = _select(lambda row: row.hidden_states != "")
EXPOSING_LAST_LAYER_OUTPUT = _select(lambda row: row.hidden_states == "with the last")
SUPPORTING_MTP = _select(lambda row: row.mtp != "")
CHAINING_MTP = _select(lambda row: row.mtp == "several")
WITH_ASSISTANT = _select(lambda row: row.has_assistant)
EXPOSING_FINAL_STATE = SUPPORTING_MTP | WITH_ASSISTANT
"""Those that expose the last layer's output (t_h_nextn), which an MTP head reads."""
FLAGGING_WINDOWS = _select(lambda row: row.flags_windows)
ALLOWING_ONE_EXPERT = _select(lambda row: row.allows_one_expert)
TRIMMING_VOCABULARY = _select(lambda row: row.can_trim_vocabulary)
