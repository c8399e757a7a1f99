"""The tokenizer of the embedded models: byte-level BPE of 512 tokens, every digit its own, ChatML.

It is learned from training problems alone, so that its merges know nothing of the other splits or of the held-out
wordings.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from zoo.tasks.arithmetic import Problem, problems

VOCAB_SIZE = 512
# Rotary positions go on as far as one likes: so long prompts and answers can be served, and speeds measured with them.
# Training goes to about 450 tokens; what the models write far beyond has no sense.
CONTEXT = 16384
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def build(n: int = 6000, seed: int = 7) -> PreTrainedTokenizerFast:
    """A tokenizer learned from `n` training problems; the same for the same arguments."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = (f"user\n{p.question}\nassistant\n{p.solution}\n" for p in problems("train", n, seed))
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )


def prompt(tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    """The text after which a model writes the worked answer."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    return str(text)


def completion(problem: Problem) -> str:
    """The text that a model is trained to write after `prompt`."""
    return problem.solution + END
