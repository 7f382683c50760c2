"""Conversations to tokens and masks, with a real tokenizer."""

from __future__ import annotations

import json
import random

import pytest
from transformers import AutoTokenizer

from hiddenstream.contracts.errors import UsageError
from producer.chat import ChatTokenizer, mask_of_spans
from producer.rejections import BadRow
from tests.producer.conftest import PLAIN_TEMPLATE

GENERATION_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REWRITING_TEMPLATE = PLAIN_TEMPLATE.replace(
    "{{ m['content'] }}", "{{ m['content'] if loop.last else m['content'].split('</think>')[-1] }}"
)
STRICT_TEMPLATE = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}" + (
    PLAIN_TEMPLATE
)
TALK = [
    {"role": "system", "content": "be the help"},
    {"role": "user", "content": "what is the time, héé?"},
    {"role": "assistant", "content": "the time 🕐"},
    {"role": "user", "content": "the end?"},
    {"role": "assistant", "content": "<think>hm</think>yes, the end 🏁"},
]


def supervised_text(folder, row) -> str:
    """Return what the mask covers, as text."""
    tokens, mask = ChatTokenizer(str(folder), None)(row)
    return AutoTokenizer.from_pretrained(folder).decode(tokens[mask == 1])


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, GENERATION_TEMPLATE, REWRITING_TEMPLATE])
def test_tokens_equal_apply_chat_template(model_with, template):
    """The tokens are those that training would see: exactly the tokenizer's own."""
    folder = model_with(template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    generator = random.Random(0)
    chat = ChatTokenizer(str(folder), None)

    for _ in range(30):
        talk = [
            {"role": role, "content": "".join(generator.choices("the é🏁\n <|im_end|>", k=generator.randint(0, 20)))}
            for role in ("system", "user", "assistant", "user", "assistant")[: generator.randint(1, 5)]
        ]
        assert tokenizer.apply_chat_template(talk, tokenize=True)["input_ids"] == chat({"messages": talk})[0].tolist()


def test_mask_covers_the_answers_and_their_ends(model_folder):
    """Without markers, the answers and what the template writes after them are trained on, nothing else."""
    assert "the time 🕐<|im_end|>\n<think>hm</think>yes, the end 🏁<|im_end|>\n" == supervised_text(
        model_folder, {"messages": TALK}
    )


def test_mask_follows_generation_markers(model_with):
    """A template that marks what the assistant generates is believed."""
    assert "the time 🕐<|im_end|><think>hm</think>yes, the end 🏁<|im_end|>" == supervised_text(
        model_with(GENERATION_TEMPLATE), {"messages": TALK}
    )


def test_template_that_rewrites_history_gives_no_mask(model_with):
    """Where earlier answers change as the talk goes on, no mask is better than a wrong one."""
    chat = ChatTokenizer(str(model_with(REWRITING_TEMPLATE)), None)
    thoughts = [*TALK[:2], {"role": "assistant", "content": "<think>x</think>y"}, *TALK[3:]]

    _, mask = chat({"messages": thoughts})
    _, mask_of_one_answer = chat({"messages": TALK[:3]})

    assert mask is None
    assert mask_of_one_answer is not None


def test_talk_without_an_answer_has_a_mask_of_zeros(model_folder):
    """Nothing is trained on where the assistant says nothing."""
    _, mask = ChatTokenizer(str(model_folder), None)({"messages": TALK[:2]})

    assert {0} == set(mask.tolist())


def test_part_that_the_template_refuses_gives_no_mask(model_with):
    """An answer that comes first cannot be told apart by a template that wants something before it."""
    _, mask = ChatTokenizer(str(model_with(PLAIN_TEMPLATE)), None)({"messages": [TALK[2]]})

    assert mask is None


def test_sharegpt_and_openai_forms_are_equal(model_folder):
    """The same talk gives the same tokens and mask in either form, also with null keys as Arrow adds them."""
    chat = ChatTokenizer(str(model_folder), None)
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    sharegpt = [{"from": names[m["role"]], "value": m["content"], "weight": None} for m in TALK]

    tokens, mask = chat({"messages": [{**m, "tool_calls": None} for m in TALK], "conversations": None})
    other_tokens, other_mask = chat({"conversations": sharegpt})

    assert tokens.tolist() == other_tokens.tolist()
    assert mask.tolist() == other_mask.tolist()


@pytest.mark.parametrize("as_text", [False, True])
def test_tools_reach_the_template(model_with, as_text):
    """A row's tools are rendered, whether they are a list or its JSON text."""
    folder = model_with("{% for t in tools or [] %}[{{ t['name'] }}]{% endfor %}" + PLAIN_TEMPLATE)
    tools = [{"name": "clock", "parameters": None}]

    tokens, mask = ChatTokenizer(str(folder), None)(
        {"messages": TALK[:3], "tools": json.dumps(tools) if as_text else tools}
    )

    assert AutoTokenizer.from_pretrained(folder).decode(tokens).startswith("[clock]<|im_start|>system")
    assert mask.any()


def test_keys_that_arrow_added_do_not_reach_the_template(model_with):
    """A null anywhere in a message is a key that is not there, so Parquet and JSON Lines render alike."""
    template = "{% for m in messages %}{{ m['tool_calls'] | tojson }}{% endfor %}"
    call = {"function": {"name": "clock", "arguments": {"zone": "utc"}}}
    with_nulls = {"id": None, "function": {**call["function"], "arguments": {"zone": "utc", "city": None}}}
    chat = ChatTokenizer(str(model_with(template)), None)

    tokens, _ = chat({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]})
    other_tokens, _ = chat({"messages": [{"role": "assistant", "tool_calls": [with_nulls]}]})

    assert tokens.tolist() == other_tokens.tolist()


def nested(depth):
    """Return lists in lists."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": "hello"}, "no list of messages"),
        ({"messages": []}, "no list of messages"),
        ({"messages": {"role": "user"}}, "no list of messages"),
        ({"messages": ["hello"]}, "message 0 of messages is no object"),
        ({"messages": [{"content": "x"}]}, "message 0 of messages has no role"),
        ({"messages": [{"role": 1, "content": "x"}]}, "has no role"),
        ({"messages": [{"role": "user"}]}, "has no content"),
        ({"messages": [{"role": "user", "content": []}]}, "no text"),
        ({"messages": [{"role": "user", "content": 5}]}, "no text"),
        ({"conversations": [{"from": "ghost", "value": "x"}]}, "from 'ghost'"),
        ({"conversations": [{"from": "human"}]}, "has no content"),
        ({"messages": [{"role": "system", "content": "x"}]}, "begin with the user"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "the chat template refuses it"),
        ({"messages": TALK[1:], "tools": "{"}, "not JSON"),
        ({"messages": [{"role": "user", "content": "x", "extra": nested(2000)}]}, "too deeply"),
        ({"messages": TALK[1:], "tools": {"name": "x"}}, "no list"),
    ],
)
def test_malformed_conversation_is_a_bad_row(model_with, row, says):
    """A conversation that cannot be rendered is rejected with what is wrong about it."""
    with pytest.raises(BadRow, match=says) as caught:
        ChatTokenizer(str(model_with(STRICT_TEMPLATE)), None)(row)
    assert "malformed_messages" == caught.value.reason


def test_missing_tokenizer_matters_only_once_a_conversation_comes(bare_model_folder):
    """Without a tokenizer nothing is wrong until one is needed; then the error says so."""
    chat = ChatTokenizer(str(bare_model_folder), None)

    with pytest.raises(UsageError, match=r"no usable tokenizer|no chat template"):
        chat({"messages": TALK})


def test_missing_chat_template_is_a_usage_error(model_with):
    """A tokenizer that does not know how conversations look cannot render them."""
    chat = ChatTokenizer(str(model_with(None)), None)

    with pytest.raises(UsageError, match="no chat template"):
        chat({"messages": TALK})


def test_several_templates_without_a_default_are_a_usage_error(model_with):
    """Which template is meant cannot be guessed, and no conversation is to blame for it."""
    chat = ChatTokenizer(str(model_with({"one": PLAIN_TEMPLATE, "two": PLAIN_TEMPLATE})), None)

    with pytest.raises(UsageError, match="no chat template"):
        chat({"messages": TALK})


def test_nothing_is_put_before_the_template(model_folder, tmp_path):
    """A tokenizer that begins every text with a token of its own does not begin the rendered talk with a second one."""
    wire = json.loads((model_folder / "tokenizer.json").read_text())
    wire["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}},
    }
    plain_tokens, _ = ChatTokenizer(str(model_folder), None)({"messages": TALK})
    (model_folder / "tokenizer.json").write_text(json.dumps(wire))

    tokens, _ = ChatTokenizer(str(model_folder), None)({"messages": TALK})

    assert plain_tokens.tolist() == tokens.tolist()


def test_token_across_the_border_of_an_answer_is_masked():
    """A token with at least one character of an answer counts as the answer's."""
    assert [0, 1, 1, 0] == mask_of_spans([(0, 2), (2, 5), (5, 6), (6, 9)], [(3, 6)]).tolist()
