"""A minimal GPT-2, as small as it can be written with torch: the speed that no wrapper around it should lose.

Tied embeddings, pre-norm blocks, `scaled_dot_product_attention`, the tanh form of GELU, no dropout, the vocabulary
padded to a multiple of 128; nothing else.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, hidden) -> (B, T, hidden)."""
        batch, length, hidden = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class MinimalGPT2(nn.Module):
    """Tokens and targets in, mean loss out."""

    def __init__(self, layers: int, hidden: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        vocabulary = -(-vocabulary // 128) * 128
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)
        self.output = nn.Linear(hidden, vocabulary, bias=False)
        self.output.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats of `targets` (B, T) behind `tokens` (B, T)."""
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(places))
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1).float(), targets.flatten())
