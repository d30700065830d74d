"""Chat templates that behave as those of the model families do, each as short as that allows.

What matters is reproduced: headers and ends of messages, default system messages, trimming, and what becomes of the
thoughts of earlier replies. Tools, images and reasoning in fields of its own are left out.
"""

import functools

from transformers import AutoTokenizer

from tinker_client.connection.models import TINY_MODEL
from tinker_client.play.chat import ChatTemplate

CHATML = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Brings a system message of its own where a chat has none, as SmolLM2 does too.
QWEN2_5 = """\
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""

SMOLLM2 = """\
{%- for m in messages %}
{%- if loop.first and m.role != 'system' %}{{- '<|im_start|>system\nYou are SmolLM.<|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""

# Drops the thoughts of replies before the last question, the empty block included. A last reply without thoughts gets
# an empty block, and so does the prompt when thinking is off; when it is on, the model opens the block itself.
QWEN3 = """\
{%- set ns = namespace(question=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.question = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set thoughts = m.content.split('</think>')[0].split('<think>')[-1] if '</think>' in m.content else '' %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.question and (loop.last or thoughts) %}
{{- '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' }}
{%- endif %}
{{- m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

# As Qwen3, but trims contents, and the prompt opens the block when thinking is on.
QWEN3_5 = (
    QWEN3.replace("and (loop.last or thoughts) ", "")
    .replace("m.content.split('</think>')[-1].lstrip('\n')", "m.content.split('</think>')[-1] | trim")
    .replace("m.role + '\n' + m.content", "m.role + '\n' + m.content | trim")
    .replace("</think>\n\n' }}{% endif %}", "</think>\n\n' }}{% else %}{{- '<think>\n' }}{% endif %}")
)

# Begins the text itself, trims what it is given, and puts the date before the system message.
LLAMA3 = """\
{{- '<|begin_of_text|>' }}
{%- if messages[0].role != 'system' %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n<|eot_id|>' }}
{%- endif %}
{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}
{%- if m.role == 'system' %}{{- 'Today Date: 26 Jul 2024\n\n' }}{% endif %}
{{- (m.content | trim) + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

# No header before a reply, a space there instead, and the system message inside the first user message.
MISTRAL = """\
{%- if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{{- '<s>' }}
{%- for m in rest %}
{%- if m.role == 'user' %}{{- '[INST]' + (system if loop.first else '') + m.content + '[/INST]' }}
{%- else %}{{- ' ' + m.content + '</s>' }}{% endif %}
{%- endfor %}"""

# Another name for the assistant, and no system role.
GEMMA = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{{- '<bos>' }}
{%- for m in messages %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{% endif %}"""

# The template, the token that ends a message, and its other special tokens.
FAMILIES = {
    "chatml": (CHATML, "<|im_end|>", ["<|im_start|>"]),
    "smollm2": (SMOLLM2, "<|im_end|>", ["<|im_start|>"]),
    "qwen2.5": (QWEN2_5, "<|im_end|>", ["<|im_start|>"]),
    "qwen3": (QWEN3, "<|im_end|>", ["<|im_start|>", "<think>", "</think>"]),
    "qwen3.5": (QWEN3_5, "<|im_end|>", ["<|im_start|>", "<think>", "</think>"]),
    "llama3": (LLAMA3, "<|eot_id|>", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]),
    "mistral": (MISTRAL, "</s>", ["<s>", "[INST]", "[/INST]"]),
    "gemma": (GEMMA, "<end_of_turn>", ["<bos>", "<start_of_turn>"]),
}


@functools.cache
def make(name: str, thinking: bool = False) -> ChatTemplate:
    """The chat template of a family, on the tiny model's tokenizer."""
    text, stop, others = FAMILIES[name]
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": [stop, *others]})
    tokenizer.chat_template = text
    return ChatTemplate(tokenizer, [tokenizer.convert_tokens_to_ids(stop)], thinking=thinking)
