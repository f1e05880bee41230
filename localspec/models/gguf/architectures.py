"""The model architectures that the pinned llama.cpp runs, and how their memories behave.

From src/llama-arch.cpp: LLM_ARCH_NAMES, llm_arch_is_recurrent, llm_arch_is_hybrid,
llm_arch_supports_rs_rollback.
"""

from __future__ import annotations


def _name_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


RECURRENT = _name_set("mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7")
"""No memory of single tokens: a wrong guess cannot be taken back."""
HYBRID = _name_set(
    "jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next "
    "kimi-linear bailingmoe3 kimi-k3 glm5-next qwen35 qwen35moe qwen4exp deepseek4 minimax-01"
)
"""Attention and recurrence mixed."""
ROLLBACK = _name_set(
    "kimi-k3 qwen35 qwen35moe qwen4exp deepseek4 glm5-next nemotron_h nemotron_h_moe lfm2 "
    "lfm2moe bailingmoe3"
)
"""Of the hybrid ones, those that keep snapshots to go back to."""
DIFFUSION = _name_set("dream llada llada-moe rnd1")
"""They do not write from left to right."""
ENCODERS = _name_set(
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "t5encoder gemma-embedding llama-embed"
)
"""They give vectors, no text."""
DRAFT_HEADS = _name_set("eagle3 dflash gemma4-assistant")
"""Drafts that read the target's hidden states: no models of their own."""
EXPOSING_HIDDEN_STATES = _name_set(
    "llama qwen3 qwen3moe gpt-oss gemma4 qwen35 qwen35moe qwen3next lfm2 lfm2moe mimo2 nemotron_h "
    "nemotron_h_moe minimax-01 minimax-m2 hunyuan_vl hunyuan-dense muse-glimmer nanbeige "
    "bailingmoe3 deepseek4"
)
"""Those whose graphs publish the inputs of their layers (t_layer_inp); asking another aborts.

So does qwen4exp, whose inputs are several times as wide as llama.cpp itself takes them to be.
"""
EXPOSING_LAST_LAYER_OUTPUT = _name_set("mimo2 nemotron_h nemotron_h_moe deepseek4")
"""Of these, those that publish what leaves the last layer, as layer n_layer."""
SUPPORTING_MTP = _name_set(
    "mimo2 qwen35 qwen35moe qwen3next glm4moe deepseek2 deepseek32 hy_v3 step35 bailingmoe3 "
    "nemotron_h_moe cohere2moe glm-dsa glm5-next"
)
"""Those that llama.cpp can run with a layer of their own that predicts one token more (MTP)."""
OTHER_NON_TEXT = _name_set("clip wavtokenizer-dec qwen3tts pockettts t5")
"""Known, but no plain writers of text."""
SPEECH = _name_set("whisper wavtokenizer-dec qwen3tts pockettts")
"""Some of them are no language models to llama.cpp either."""
IMAGE_GENERATORS = _name_set(
    "flux sd1 sdxl sd3 aura hidream cosmos ltxv hyvid wan lumina2 qwen_image"
)
"""They come as GGUF too, for other programs."""
ATTENTION_ONLY = _name_set(
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
KNOWN = ATTENTION_ONLY | RECURRENT | HYBRID | DIFFUSION | ENCODERS | DRAFT_HEADS | OTHER_NON_TEXT
