"""The model architectures of the pinned llama.cpp, by memory type and features.

From src/llama-arch.cpp: LLM_ARCH_NAMES, llm_arch_is_recurrent, llm_arch_is_hybrid,
llm_arch_supports_rs_rollback.
"""

from __future__ import annotations


def name_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


RECURRENT = name_set("mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7")
"""Recurrent state only: rejected tokens cannot be removed."""
HYBRID = name_set(
    "jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next "
    "kimi-linear bailingmoe3 kimi-k3 glm5-next qwen35 qwen35moe qwen4exp deepseek4 minimax-01"
)
"""Attention and recurrent layers mixed."""
ROLLBACK = name_set(
    "kimi-k3 qwen35 qwen35moe qwen4exp deepseek4 glm5-next nemotron_h nemotron_h_moe lfm2 "
    "lfm2moe bailingmoe3"
)
"""Hybrid ones with checkpoints of the recurrent state for rollback."""
DIFFUSION = name_set("dream llada llada-moe rnd1")  # Not autoregressive.
ENCODERS = name_set(
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "t5encoder gemma-embedding llama-embed"
)
"""They output vectors, not text."""
ASSISTANT = "gemma4-assistant"
DRAFT_HEADS = name_set(f"eagle3 dflash {ASSISTANT}")
"""Heads that read the target's hidden states; not models by themselves."""
EXPOSING_HIDDEN_STATES = name_set(
    "llama qwen3 qwen3moe gpt-oss gemma4 qwen35 qwen35moe qwen3next lfm2 lfm2moe mimo2 nemotron_h "
    "nemotron_h_moe minimax-01 minimax-m2 hunyuan_vl hunyuan-dense muse-glimmer nanbeige "
    "bailingmoe3 deepseek4"
)
"""Architectures whose graphs expose the layers' inputs (t_layer_inp); llama.cpp aborts
for others.

qwen4exp is left out: its inputs are several times wider than llama.cpp assumes.
"""
EXPOSING_LAST_LAYER_OUTPUT = name_set("mimo2 nemotron_h nemotron_h_moe deepseek4")
"""Of these, the ones that also expose the last layer's output, as layer n_layer."""
SUPPORTING_MTP = name_set(
    "mimo2 qwen35 qwen35moe qwen3next glm4moe deepseek2 deepseek32 hy_v3 step35 bailingmoe3 "
    "nemotron_h_moe cohere2moe glm-dsa glm5-next"
)
"""Architectures whose MTP layer llama.cpp can run."""
CHAINING_MTP = name_set("mimo2 step35 hy_v3")
"""Of these, the ones with which several MTP layers draft one after the other; the
others abort.
"""
EXPOSING_FINAL_STATE = SUPPORTING_MTP | {"gemma4"}
"""Architectures that expose the last layer's output (t_h_nextn), which an MTP head
reads.
"""
OTHER_NON_TEXT = name_set("clip wavtokenizer-dec qwen3tts pockettts t5")
"""Known to llama.cpp, but not decoder-only text models."""
# Some are unknown to llama.cpp.
SPEECH = name_set("whisper wavtokenizer-dec qwen3tts pockettts")
IMAGE_GENERATORS = name_set(
    "flux sd1 sdxl sd3 aura hidream cosmos ltxv hyvid wan lumina2 qwen_image"
)
"""Published as GGUF for other programs."""
ATTENTION_ONLY = name_set(
    "llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bloom "
    "stablelm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe "
    "plamo plamo3 codeshell orion internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4 "
    "starcoder2 maple xverse command-r cohere2 cohere2moe dbrx olmo olmo2 olmoe muse-glimmer "
    "openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32 chatglm glm4 glm4moe glm-dsa "
    "bitnet jais jais2 nemotron exaone exaone4 exaone-moe granite granitemoe graniteswitch "
    "granite_swa chameleon plm bailingmoe bailingmoe2 dots1 dots3note arcee afmoe laguna "
    "ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss "
    "smallthinker seed_oss grovemoe apertus hrm_text minimax-m2 minimax-m3 cogvlm pangu-embedded "
    "mistral3 mistral4 paddleocr mimo2 step35 spark2_5 maincoder talkie mellum nanbeige"
)
KNOWN = (
    ATTENTION_ONLY
    | RECURRENT
    | HYBRID
    | DIFFUSION
    | ENCODERS
    | DRAFT_HEADS
    | OTHER_NON_TEXT
)
