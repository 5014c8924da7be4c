"""The tiny policy's own tokenizer. Invariant: decode(encode(text)) == text for every UTF-8 text; one id per ASCII
character.

Bytes are the alphabet, so no text is out of vocabulary, and no merge can make two different id lists of one text.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = (PAD, END, *(f"<|{role}|>" for role in ROLES))
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
MAX_LENGTH = 4096

# One id per role instead of its spelled-out name: a one-digit sum is then a prompt of seven tokens. Of tools the tiny
# policy is told name and arguments only: `calc(e)`.
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|system|>' }}{% for tool in tools %}{{ tool['function']['name'] + '(' +"
    " tool['function']['parameters'].get('properties', {}) | join(',') + ')' }}{% endfor %}{{ '<|end|>' }}{% endif %}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level tokenizer of `VOCAB_SIZE` ids: 256 bytes, then `SPECIAL_TOKENS`. It adds nothing at either end."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
