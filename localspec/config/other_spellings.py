"""Other programs' names for options: what each is here, or why it is not here.

One table for `--temp` on the command line, `/temp` and `/set temp` in a chat, and
`config set temp`. The names are those of llama.cpp (`common/arg.cpp`, all of them: a test
compares), of Ollama (flags, and parameters of a Modelfile), of LM Studio (fields of its
settings, and flags of `lms`), and of OpenAI's API. `--ctx_size` is `--ctx-size`.

A name that means the same here, with the same values, is taken. Every other one is
refused with a hint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

MODEL = "MODEL"  # The argument, which is no option here.

_TAKEN: Mapping[str, str] = {
    MODEL: "-m --model -hf -hfr --hf-repo",
    "--system": "-sys --system-prompt",
    "--max-tokens": "-n --predict --n-predict num_predict max_completion_tokens",
    "--stop": "-r --reverse-prompt stopStrings",
    "--think": "-rea --reasoning",
    "--effort": "--reasoning-effort",
    "--think-budget": "--reasoning-budget",
    "--json-schema": "-j -jf --json-schema-file",
    "--grammar": "--grammar-file",
    "--template": "--chat-template",
    "--temperature": "--temp",
    "--top-k": "topKSampling",
    "--top-p": "topPSampling",
    "--min-p": "minPSampling",
    "--seed": "-s",
    "--draft": "--spec-draft-model -md --model-draft draftModel "
    "--spec-draft-hf -hfd -hfrd --hf-repo-draft",
    "--draft-max": "--spec-draft-n-max --draft-n draft_length",
    "--ctx": "-c --ctx-size num_ctx n_ctx contextLength",
    "--gpu-layers": "-ngl --n-gpu-layers num_gpu",
    "--draft-gpu-layers": "--spec-draft-ngl -ngld --gpu-layers-draft "
    "--n-gpu-layers-draft",
    "--main-gpu": "-mg",
    "--split": "-sm --split-mode -ts --tensor-split",
    "--cpu-moe": "-ncmoe --n-cpu-moe",
    "--threads": "-t num_thread cpuThreads",
    "--draft-threads": "--spec-draft-threads -td --threads-draft",
    "--flash-attn": "-fa flashAttention",
    "--alias": "-a",
}
"""Names with the same meaning and values, by our option."""

_NOT_HERE = "localspec has no such option."
_AUTOMATIC = "localspec sets this by itself, from measurements of this computer."
_OTHER_PROGRAM = "It is an option of another program of llama.cpp, not of a chat."
_DRAWING = "Sampling here: --temperature, --top-k, --top-p, --min-p, --repeat-penalty, DRY, XTC."
_PRIORITY = "Use the system's own commands: taskset, nice."
_KV = "Keys and values have one option: --kv f16|q8_0/f16|q8_0|q4_0."
_LOG = "The engine's log is engine.log; localspec run -v names it, /logs shows it."
_PICTURES = "localspec reads text only."
_REMOTE = "For other computers: --workers HOST, after `localspec worker` there."
_HUB = "Give the model as user/repo:QUANT, as the address of its file, or as a path."
_FINE_DRAFTS = (
    "With --spec auto, localspec decides in every round; --draft-max N is the limit."
)
_LOOKUP = "Prompt lookup is --spec lookup; it has no options, and keeps no file."
_PAGE = "localspec serve has no web page; `localspec` opens the app."
_TOOLS = "localspec runs no tools; clients of localspec serve do."
_PRESET = "localspec pair suggest lists pairs; localspec run NAME downloads one."

_REFUSED: Mapping[str, str] = {
    # --- what is done in another way
    "It is -h or --help.": "--usage",
    "See: localspec list": "-cl --cache-list",
    "See: localspec completion --help": "--completion-bash",
    "See: localspec doctor": "--list-devices",
    "See: localspec fit --help": "-fit --fit -fitp --fit-print -fitt --fit-target "
    "-fitc --fit-ctx",
    "See: localspec verify --help, which checks the output.": "--check",
    "Colours are off with --no-color, or where output is no terminal.": "-co --color "
    "--log-colors",
    "Pipe it: localspec run MODEL < FILE": "-f --file -bf --binary-file --in-file "
    "--stdin",
    'Give its text: --system "$(cat FILE)"': "-sysf --system-prompt-file",
    "Without -p, localspec run is a chat; with -p it answers once.": "-cnv "
    "--conversation -no-cnv --no-conversation -st --single-turn -i --interactive "
    "-if --interactive-first",
    'A message goes on after a \\ at the end of a line, or between """ lines.': "-mli "
    "--multiline-input",
    "For the text without a template: --raw": "--in-prefix --in-suffix "
    "--in-prefix-bos --no-bos --prefill-assistant --no-prefill-assistant "
    "--skip-chat-parsing --no-skip-chat-parsing",
    "The model's own template is always used; --template NAME or --raw change that.": (
        "--jinja --no-jinja --chat-template-file --chat-template-kwargs template"
    ),
    "Thinking is shown by /think show, and kept apart in --json.": "--reasoning-format "
    "--reasoning-preserve --no-reasoning-preserve --reasoning-budget-message "
    "--hidethinking",
    "--stats prints them; -v prints what is loaded.": "--perf --no-perf "
    "--show-timings --no-show-timings -ptc --print-token-count --show-count",
    "All experts: --cpu-moe all": "-cmoe",
    "In a chat: /set overflow drop": "--context-shift --no-context-shift --keep "
    "num_keep contextOverflowPolicy",
    "It is an option of a request to localspec serve.": "--presence-penalty "
    "--frequency-penalty -l --logit-bias",
    "Set HF_TOKEN.": "-hft --hf-token",
    _HUB: "-mu --model-url -dr --docker-repo -hff --hf-file --from",
    "Drafts that a model has are found and used by themselves: localspec pull MODEL": (
        "--mtp --dflash --eagle3"
    ),
    "The drafter is --spec NAME: localspec run --help": "--spec-type --spec-default",
    "JSON answers: --json-schema; JSON with the figures: --json": "--format structured",
    "localspec serve --log json": "--log-jsonl --no-log-jsonl",
    "Redirect it: localspec run MODEL -p TEXT > FILE": "-o --output",
    "A key on the command line can be read by others: --api-key-file, or "
    "LOCALSPEC_API_KEY.": "--api-key",
    "localspec serve answers one request after the other; --queue N may wait.": (
        "-np --parallel -cb --cont-batching -nocb --no-cont-batching "
        "--kv-unified-per-slot -kvu --kv-unified -no-kvu --no-kv-unified "
        "--threads-http"
    ),
    "Models that stay loaded: localspec serve --keep N": "--models-max",
    "Minutes until an unused model is unloaded: --idle N": "--sleep-idle-seconds "
    "--keepalive --keep-alive --ttl stop-timeout",
    "Every model named after `localspec serve` is loaded when a request names it.": (
        "--models-preset --models-autoload --no-models-autoload load-on-startup "
        "dedup-cache-models"
    ),
    "It is always on.": "--metrics --props --cache-prompt --no-cache-prompt",
    "Pages that may ask: --allow-origin ORIGIN": "--cors-origins --cors-methods "
    "--cors-headers --cors-credentials --no-cors-credentials",
    "Put a proxy with HTTPS before it.": "--ssl-key-file --ssl-cert-file --api-prefix "
    "--server-base --reuse-port",
    "Pictures are not read; localspec reads text only.": "--image --audio --video",
    _PICTURES: "-mm --mmproj -mmu --mmproj-url --mmproj-auto --no-mmproj "
    "--no-mmproj-auto --mmproj-offload --no-mmproj-offload --image-min-tokens "
    "--image-max-tokens --mtmd-batch-max-tokens --video-fps "
    "--video-timestamp-interval --video-ffmpeg-dir --media-path",
    _REMOTE: "--rpc",
    "Which GPU: --main-gpu N with --split none; how many share: --split 3,1": (
        "-dev --device --spec-draft-device -devd --device-draft"
    ),
    "In a chat: /think on, /think off": "--nothink",
    "Lines are wrapped at words.": "--nowordwrap --simple-io",
    _PRESET: "--fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default "
    "--fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default "
    "--gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default "
    "--vision-gemma-12b-default --embd-gemma-default",
    # --- what has one option where llama.cpp has two, or none because it is measured
    _KV: "-ctk --cache-type-k -ctv --cache-type-v llamaKCacheQuantizationType "
    "llamaVCacheQuantizationType",
    "The draft's keys and values have one option: --draft-kv f16|q8_0|q4_0.": (
        "--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd "
        "--cache-type-v-draft"
    ),
    _AUTOMATIC: "-tb --threads-batch --spec-draft-threads-batch -tbd "
    "--threads-batch-draft -b --batch-size -ub --ubatch-size num_batch evalBatchSize "
    "--swa-full -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step "
    "-cram --cache-ram --cache-idle-slots --no-cache-idle-slots --cache-reuse "
    "--warmup --no-warmup --repack -nr --no-repack --no-host --op-offload "
    "--no-op-offload -kvo --kv-offload -nkvo --no-kv-offload low_vram "
    "offloadKVCacheToGpu -lm --load-mode -lzm --lazy-mode --mlock --no-mmap --mmap "
    "use_mmap use_mlock tryMmap -dt --defrag-thold -bs --backend-sampling "
    "--spec-draft-backend-sampling --no-spec-draft-backend-sampling "
    "--check-tensors",
    _FINE_DRAFTS: "--spec-draft-n-min --draft-min --draft-n-min --spec-draft-p-split "
    "--draft-p-split --spec-draft-p-min --draft-p-min --spec-synth-len "
    "--spec-synth-rates speculativeDecodingNumDraftTokensExact "
    "speculativeDecodingMinContinueDraftingProbability "
    "speculativeDecodingMinDraftLengthToConsider",
    "The draft model is loaded as --draft-gpu-layers and --draft-threads say.": (
        "--spec-draft-override-tensor -otd --override-tensor-draft "
        "--spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe "
        "--spec-draft-ncmoe -ncmoed --n-cpu-moe-draft"
    ),
    _LOOKUP: "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic "
    "--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match "
    "--spec-ngram-simple-size-n --spec-ngram-simple-size-m "
    "--spec-ngram-simple-min-hits --spec-ngram-map-k-size-n "
    "--spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits "
    "--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m "
    "--spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m "
    "--spec-ngram-min-hits",
    _PRIORITY: "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb "
    "--cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --prio-batch "
    "--poll-batch --numa --spec-draft-cpu-mask -Cd --cpu-mask-draft "
    "--spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict "
    "--cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll "
    "--poll-draft --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft "
    "--spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft "
    "--spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch "
    "--prio-batch-draft --spec-draft-poll-batch --poll-batch-draft",
    _LOG: "-v --verbose --verbose-prompt --log-disable --log-file --log-prompts-dir -lv "
    "--verbosity --log-verbosity --log-verbose --log-prefix --no-log-prefix "
    "--log-timestamps --no-log-timestamps",
    # --- what is not here
    _DRAWING: "--samplers --sampler-seq --sampling-seq --ignore-eos --top-nsigma "
    "--top-n-sigma --typical --typical-p tfs_z --dry-penalty-last-n "
    "--dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range "
    "--dynatemp-exp --mirostat --mirostat-lr --mirostat-ent mirostat_eta mirostat_tau "
    "penalize_newline",
    _PAGE: "--path --ui-config --webui-config --ui-config-file --webui-config-file "
    "--ui --webui --no-ui --no-webui",
    _TOOLS: "--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy "
    "--tools --tools-runtime --mcp-servers-config --mcp-servers-json -ag --agent "
    "-no-ag --no-agent",
    _NOT_HERE: "--display-prompt --no-display-prompt -e --escape --no-escape "
    "--prompt-cache --prompt-cache-all --prompt-cache-ro -sp --special --spm-infill "
    "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale rope_frequency_base "
    "rope_frequency_scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor "
    "--yarn-beta-slow --yarn-beta-fast -gan --grp-attn-n -gaw --grp-attn-w "
    "-ot --override-tensor -ncffn --n-cpu-ffn --override-kv --lora --lora-scaled "
    "--lora-init-without-apply --control-vector --control-vector-scaled "
    "--control-vector-layer-range --tags -to --timeout --sse-ping-interval --slots "
    "--no-slots --slot-save-path -sps --slot-prompt-similarity --insecure "
    "--identifier --chunks",
    _OTHER_PROGRAM: "--hellaswag --hellaswag-tasks --winogrande --winogrande-tasks "
    "--multiple-choice --multiple-choice-tasks --kl-divergence --save-all-logits "
    "--kl-divergence-base --ppl-stride --ppl-output-type -ns --sequences "
    "--pooling --attention --embedding --embeddings --rerank --reranking "
    "--context-file --chunk-size --chunk-separator --junk --pos -ofreq "
    "--output-frequency --output-format --output-file --save-frequency "
    "--process-output --ppl --no-ppl --chunk --from-chunk --show-statistics "
    "--parse-special --no-parse-special --ids -pps -tgs -npp -ntg -npl "
    "--embd-normalize --embd-output-format --embd-separator --cls-separator "
    "--positive-file --negative-file --pca-batch --pca-iter --method --tts-lang "
    "--tts-speaker-file --diffusion-steps --diffusion-visual --diffusion-eps "
    "--diffusion-algorithm --diffusion-alg-temp --diffusion-block-length "
    "--diffusion-cfg-scale --diffusion-add-gumbel-noise -lr --learning-rate -lr-min "
    "--learning-rate-min -decay-epochs --learning-rate-decay-epochs -wd "
    "--weight-decay -val-split --val-split -epochs --epochs -opt --optimizer "
    "--save-logits --logits-output-dir --tensor-filter",
}
"""Names that are refused, by the hint."""


class OtherSpelling(Struct, frozen=True):
    """A name of another program; `ours` or `hint` says what it is here."""

    name: str
    ours: str = ""  # The flag of the option that it is here, or `MODEL`.
    hint: str = ""  # If there is none.

    @property
    def flag(self) -> str:
        """As an option: a parameter's name in the flag's form, `num_ctx` as `--num-ctx`."""
        if self.name.startswith("-"):
            return self.name
        return f"--{normalize_name(self.name).replace('_', '-')}"


_WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def normalize_name(name: str) -> str:
    """A name as it is compared: `--ctx-size`, `ctx_size` and `ctxSize` are one."""
    words = _WORD_STARTS.sub("_", name.strip().lstrip("-"))
    return words.lower().replace("-", "_")


def _read_table() -> tuple[OtherSpelling, ...]:
    spellings = []
    for ours, names in _TAKEN.items():
        spellings += [OtherSpelling(name, ours=ours) for name in names.split()]
    for hint, names in _REFUSED.items():
        spellings += [OtherSpelling(name, hint=hint) for name in names.split()]
    return tuple(spellings)


SPELLINGS = _read_table()
BY_FLAG: Mapping[str, OtherSpelling] = {each.flag: each for each in SPELLINGS}
BY_NAME: Mapping[str, OtherSpelling] = {
    normalize_name(each.name): each
    for each in SPELLINGS
    # A short option, such as -t or -ngl, is no name in a chat or in config.toml.
    if each.name.startswith("--") or not each.name.startswith("-")
}


def find_name(name: str) -> OtherSpelling | None:
    """What a typed name of a setting is; None if no program has it."""
    return BY_NAME.get(normalize_name(name))


def find_option_name(name: str) -> str:
    """Our option's name for a name that is taken: `num_ctx` is `ctx`; else ""."""
    spelling = find_name(name)
    if spelling is None or not spelling.ours.startswith("-"):
        return ""
    return normalize_name(spelling.ours)
