"""A LoRA learner with peft: only the adapter takes part.

yeto-syncer --learners 1 --quorum 1 --total-steps 8 --sync-interval-steps 4
python lora_learner.py 127.0.0.1:29400 0
"""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from yeto_learner.torch import TorchLearner

address, learner_id = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)  # stands for from_pretrained(): every learner begins with the same base
config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
base = GPT2LMHeadModel(config)
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))

trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
learner = TorchLearner(
    model, address, learner_id=learner_id, num_fragments=2, session_contract="lora example, run 1"
)
tokens = (torch.arange(16) + torch.arange(8)[:, None] + learner_id) % 64
with learner:
    while not learner.done:
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.step(tokens=tokens.numel())
    learner.finish()
numel = sum(fragment.numel for fragment in learner.layout.fragments)
print(f"{numel} of {sum(each.numel() for each in model.parameters())} parameters took part")
