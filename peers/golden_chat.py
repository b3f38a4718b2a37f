#!/usr/bin/env python3
"""Generates crates/text/tests/golden/chat.json: chats formatted by Hugging Face transformers.

    python3 peers/golden_chat.py

The templates use the constructs of those of well-known models: default system messages, string
methods, namespaces, macros, loop variables, white-space control, exceptions for wrong roles. For each
template and each pair of question and answer the file has the generation prompt and the whole text.
"""

import json
import pathlib

import _venv

_venv.ensure({"transformers": "transformers==5.23.0", "jinja2": "jinja2==3.1.6"}, "chat")

import tokenizers
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "crates/text/tests/golden/chat.json"

PAIRS = [
    ["What is 2 + 2?", "4"],
    ["  spaces around \n", " an answer \n\n with lines "],
    ["name : Zoë | food : 中文 <b>&amp;</b>", "{{ not a template }} {% if %}"],
]

# Name, template, and the special tokens by name.
TEMPLATES = [
    (
        "chatml",
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    ),
    (
        "zephyr",
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
        "{{ '<|user|>\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'assistant' %}\n"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n"
        "{% endfor %}",
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    (
        "inst",
        "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}"
        "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}"
        "{%- endif %}{{- bos_token }}{%- for message in loop_messages %}"
        "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{- raise_exception('roles must alternate') }}{%- endif %}"
        "{%- if message['role'] == 'user' %}"
        "{{- '[INST] ' + message['content'].strip() + ' [/INST]' }}"
        "{%- elif message['role'] == 'assistant' %}"
        "{{- ' ' + message['content'].strip() + eos_token }}{%- endif %}{%- endfor %}",
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    (
        "header",
        "{%- set ns = namespace(count=0) -%}\n{{- bos_token }}\n"
        "{%- if not date_string is defined %}\n"
        "    {%- if strftime_now is defined and false %}\n"
        "        {%- set date_string = strftime_now('%d %b %Y') %}\n    {%- else %}\n"
        "        {%- set date_string = '26 Jul 2024' %}\n    {%- endif %}\n{%- endif %}\n"
        "{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n"
        "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string }}"
        "{{- '<|eot_id|>' }}\n"
        "{%- for message in messages %}\n    {%- set ns.count = ns.count + 1 %}\n"
        "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
        " + message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n"
        "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    (
        "turns",
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}"
        "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
        "{% else %}{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
        {"bos_token": "<bos>", "eos_token": "<eos>"},
    ),
    (
        "thinking",
        "{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}\n"
        "{%- for message in messages[::-1] %}\n"
        "    {%- set index = (messages|length - 1) - loop.index0 %}\n"
        "    {%- if ns.multi_step and message.role == 'user' and message.content is string and"
        " not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}\n"
        "        {%- set ns.multi_step = false %}\n        {%- set ns.last = index %}\n"
        "    {%- endif %}\n{%- endfor %}\n"
        "{%- macro turn(role, content) %}{{ '<|im_start|>' ~ role ~ '\\n' ~ content ~"
        " '<|im_end|>\\n' }}{% endmacro %}\n"
        "{%- for message in messages %}\n    {%- if message.role == 'user' %}\n"
        "        {{- turn(message.role, message.content) }}\n"
        "    {%- elif message.role == 'assistant' %}\n"
        "        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}\n"
        "        {%- if loop.index0 > ns.last %}\n"
        "            {{- turn('assistant', '<think>\\n\\n</think>\\n\\n' + content) }}\n"
        "        {%- else %}\n            {{- turn('assistant', content) }}\n        {%- endif %}\n"
        "    {%- endif %}\n    {%- if not loop.last %}{% continue %}{% endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}",
        {"eos_token": "<|im_end|>"},
    ),
]


def main():
    cases = []
    for name, template, tokens in TEMPLATES:
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **tokens
        )
        tokenizer.chat_template = template
        chats = []
        for question, answer in PAIRS:
            user = {"role": "user", "content": question}
            assistant = {"role": "assistant", "content": answer}
            prompt = tokenizer.apply_chat_template(
                [user], tokenize=False, add_generation_prompt=True
            )
            whole = tokenizer.apply_chat_template([user, assistant], tokenize=False)
            chats.append({"question": question, "answer": answer, "prompt": prompt, "whole": whole})
        cases.append({"name": name, "template": template, "tokens": tokens, "chats": chats})
    OUT.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(cases)} templates -> {OUT.relative_to(ROOT)}")


main()
