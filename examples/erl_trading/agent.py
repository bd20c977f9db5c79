"""One member of the population: a DDPG agent with its networks and optimisers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .environment import OBSERVATION_SIZE
from .market import ASSETS
from .replay import Experience

HIDDEN: Final = 96
DISCOUNT: Final = 0.5
TARGET_RATE: Final = 0.05
ACTOR_LEARNING_RATE: Final = 5e-5
CRITIC_LEARNING_RATE: Final = 1e-3


def _network(inputs: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, outputs),
        *last,
    )


class DDPGAgent:
    """Actor, critic, their target networks and two Adam optimisers."""

    def __init__(self) -> None:
        self.actor = _network(OBSERVATION_SIZE, ASSETS, nn.Tanh())
        self.critic = _network(OBSERVATION_SIZE + ASSETS, 1)
        self.actor_target = _network(OBSERVATION_SIZE, ASSETS, nn.Tanh())
        self.critic_target = _network(OBSERVATION_SIZE + ASSETS, 1)
        self.actor_target.load_state_dict(self.actor.state_dict())
        self.critic_target.load_state_dict(self.critic.state_dict())
        for target in (self.actor_target, self.critic_target):
            target.requires_grad_(False)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), ACTOR_LEARNING_RATE)
        self.critic_optimiser = torch.optim.Adam(self.critic.parameters(), CRITIC_LEARNING_RATE)

    def act(self, observation: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return positions in [-1, 1], (ASSETS,)."""
        with torch.inference_mode():
            action: NDArray[np.float64] = self.actor(torch.as_tensor(observation).float()).numpy()
            return action.astype(np.float64)

    def accumulate(
        self, experience: Experience, share: float, *, retain_graph: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add ``share`` of the gradients of one batch and return the critic's and the actor's loss."""
        e = experience
        critic_loss = self._critic_loss(e)
        (share * critic_loss).backward(retain_graph=retain_graph)
        # The actor's loss flows through the critic, which must not learn from it.
        self.critic.requires_grad_(False)
        actor_loss = -_value(self.critic, e.observations, self.actor(e.observations)).mean()
        (share * actor_loss).backward(retain_graph=retain_graph)
        self.critic.requires_grad_(True)
        return critic_loss, actor_loss

    def train_critic(self, experience: Experience) -> None:
        """Train only the critic for one step: it must be accurate before the actor follows it."""
        self._critic_loss(experience).backward()
        self.critic_optimiser.step()
        self.critic_optimiser.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Apply the accumulated gradients and update the target networks."""
        for optimiser in (self.critic_optimiser, self.actor_optimiser):
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            _follow(self.actor_target, self.actor)
            _follow(self.critic_target, self.critic)

    def clone(self) -> DDPGAgent:
        """Return a new agent with the same weights and optimiser state."""
        twin = DDPGAgent()
        for name, state in self.state().items():
            getattr(twin, name).load_state_dict(_copied(state))
        return twin

    def mutate(self, size: float) -> None:
        """Add normal noise of ``size`` times the standard deviation of each layer to the actor's weights."""
        with torch.no_grad():
            for weights in self.actor.parameters():
                weights.add_(torch.randn_like(weights), alpha=size * float(weights.std()))

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the state dicts of networks and optimisers by attribute name. They share memory with the agent."""
        parts = (
            "actor", "critic", "actor_target", "critic_target", "actor_optimiser", "critic_optimiser",
        )  # fmt: skip
        return {part: getattr(self, part).state_dict() for part in parts}

    def _critic_loss(self, e: Experience) -> torch.Tensor:
        with torch.no_grad():
            next_value = _value(
                self.critic_target, e.next_observations, self.actor_target(e.next_observations)
            )
            wanted = e.rewards + DISCOUNT * e.going_on * next_value
        return nn.functional.smooth_l1_loss(_value(self.critic, e.observations, e.actions), wanted)


def _value(critic: nn.Module, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = critic(torch.cat((observations, actions), dim=1))
    return value


def _follow(target: nn.Module, leader: nn.Module) -> None:
    for slow, fast in zip(target.parameters(), leader.parameters(), strict=True):
        slow.lerp_(fast, TARGET_RATE)


def _copied(state: Any) -> Any:
    # An optimiser's load_state_dict does not copy tensors; two agents must not share them.
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    return state
