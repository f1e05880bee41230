"""What a hint of the command line says elsewhere."""

from __future__ import annotations

from localspec import hint_rewriting

HINTS = [
    (
        "This fits: --ctx 2048 or --kv q8_0. More: localspec fit",
        "This fits: a context of 2048 or a KV cache in q8_0. More: localspec fit",
        'This fits: ctx=2048 or kv="q8_0". More: localspec fit',
    ),
    (
        "Use a smaller --ctx, fewer --gpu-layers, a smaller quantisation, or --draft none.",
        "Use a smaller context, fewer layers on the GPU, a smaller quantisation, or no draft "
        "model.",
        'Use a smaller ctx, fewer gpu_layers, a smaller quantisation, or draft="none".',
    ),
    (
        "Try another file, or --draft none; --verbose shows the engine's last words.",
        "Try another file, or no draft model; ctrl+l shows the engine's last words.",
        'Try another file, or draft="none"; `detail` of this error has the engine\'s last words.',
    ),
    (
        "Is localspec worker running there? Or leave --workers out.",
        "Is localspec worker running there? Or remove it in the preferences.",
        "Is localspec worker running there? Or leave workers out.",
    ),
    ("Use --ctx 512 or less.", "Use a context of 512 or less.", "Use ctx=512 or less."),
    (
        "Try --kv f16 and --flash-attn auto, or --draft none.",
        "Try a KV cache in f16 and flash attention auto, or no draft model.",
        'Try kv="f16" and flash_attn="auto", or draft="none".',
    ),
    (
        "--draft-gpu-layers 0 --cpu-moe --gpu-layers 12",
        "the draft model on the CPU the experts in RAM 12 layers on the GPU",
        "draft_gpu_layers=0 cpu_moe=True gpu_layers=12",
    ),
    (
        "Use --verify coupled with --exact.",
        "Use /set verify coupled with /set exact on.",
        'Use verify="coupled" with exact=True.',
    ),
    (
        "Give one with --draft FILE, or use --spec lookup.",
        "Give one with your own draft model, or use /spec lookup.",
        'Give one with draft=FILE, or use spec="lookup".',
    ),
    ("Choose another with --template: chatml.", None, "Choose another with template: chatml."),
    ("--data-dir names another place.", None, None),
    ("Make room on the disk.", None, None),
]


def test_hints() -> None:
    for hint, words, python in HINTS:
        assert hint_rewriting.for_screen(hint) == (words or hint)
        assert hint_rewriting.for_python(hint) == (python or hint)
