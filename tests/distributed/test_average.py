"""Gradients are those of the mean over the samples of all ranks when the backward pass is over."""

import threading

import pytest
import torch
from torch import nn

from rlightning.distributed import GradientAverage
from rlightning.errors import CallTimeout
from tests.distributed.ranks import in_group


class Line(nn.Module):
    """w * x summed over the batch's mean; its gradient is the mean of x."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=dtype))
        self.unused = nn.Parameter(torch.zeros(3, dtype=dtype))
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)

    def forward(self, x):
        return (self.w * x).mean()


def averaged(size, work, dtype=torch.float32):
    """Call ``work(rank, line, average)`` on each rank; gives the gradients of w, or what was raised."""

    def on_rank(group):
        group.barrier()  # whoever has nothing to wait for would leave before the others have come
        line = Line(dtype)
        average = GradientAverage(line.parameters, group)
        work(group.rank, line, average)
        assert line.unused.grad is None
        assert line.frozen.grad is None
        return line.w.grad.item()

    return in_group(size, on_rank)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_without_weights_all_ranks_count_the_same(dtype):
    # Means of x: 1 and 5; their mean is 3.
    data = [[1.0], [3.0, 7.0]]
    assert averaged(2, lambda rank, line, _: line(torch.tensor(data[rank])).backward(), dtype) == [3.0, 3.0]


def test_weighed_gradients_are_the_mean_over_all_samples():
    data = [[1.0], [3.0, 7.0], [0.0, 0.0, 1.0]]

    def work(rank, line, average):
        with average.weigh(len(data[rank])):
            line(torch.tensor(data[rank])).backward()

    # (1 + 3 + 7 + 0 + 0 + 1) / 6 = 2.
    assert averaged(3, work) == pytest.approx([2.0] * 3)


def test_a_rank_without_samples_joins_and_has_the_gradient_of_the_others():
    def work(rank, line, average):
        if rank == 1:
            average.join()
        else:
            with average.weigh(4):
                line(torch.full((4,), 2.5)).backward()

    assert averaged(2, work) == [2.5, 2.5]


def test_what_a_rank_without_samples_has_already_does_not_count():
    def work(rank, line, average):
        line.w.grad = torch.tensor(float("nan")) if rank == 1 else None
        if rank == 1:
            average.join()
        else:
            with average.weigh(1):
                line(torch.tensor([2.0])).backward()

    assert averaged(2, work) == [2.0, 2.0]


def test_without_a_sample_anywhere_there_is_no_gradient():
    def on_rank(group):
        line = Line()
        GradientAverage(line.parameters, group).join()
        return line.w.grad

    assert in_group(2, on_rank) == [None, None]


def test_a_parameter_that_one_rank_uses_gets_its_gradient_on_all():
    def on_rank(group):
        line = Line()
        average = GradientAverage(line.parameters, group)
        loss = line(torch.ones(1)) + (line.unused.sum() if group.rank == 0 else 0.0)
        loss.backward()
        average.close()
        return line.unused.grad.tolist()

    # 1 on one rank, nothing on the other.
    assert in_group(2, on_rank) == [[0.5] * 3] * 2


def test_backward_passes_accumulate_as_on_one_rank():
    def work(rank, line, _):
        for value in (1.0, 10.0):
            line(torch.tensor([value * (rank + 1)])).backward()

    # (1 + 2) / 2 + (10 + 20) / 2 = 16.5.
    assert averaged(2, work) == [16.5, 16.5]


def test_complex_gradients_are_averaged_in_both_parts():
    def on_rank(group):
        z = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        average = GradientAverage(lambda: [z], group)
        # The gradient of the real part is 1 or 3, that of the imaginary part 10 or 20.
        (z.real * (1 + 2 * group.rank) + z.imag * 10 * (1 + group.rank)).sum().backward()
        average.close()
        return z.grad.tolist()

    assert in_group(2, on_rank) == [[2 + 15j] * 2] * 2


def test_sparse_gradients_are_averaged_as_dense_ones():
    def on_rank(group):
        table = nn.Embedding(3, 1, sparse=True)
        average = GradientAverage(table.parameters, group)
        table(torch.tensor([group.rank, 2])).sum().backward()
        average.close()
        return table.weight.grad.flatten().tolist()

    # Row 0 is looked up on one rank, row 1 on the other, row 2 on both.
    assert in_group(2, on_rank) == [[0.5, 0.5, 1.0]] * 2


def test_a_parameter_that_was_frozen_at_first_is_averaged_when_it_learns():
    def on_rank(group):
        line = Line()
        line.w.requires_grad_(False)
        average = GradientAverage(line.parameters, group)
        assert not line.w.requires_grad
        line.w.requires_grad_()
        line(torch.tensor([1.0 + 2 * group.rank])).backward()
        average.close()
        return line.w.grad.item()

    assert in_group(2, on_rank) == [2.0, 2.0]


def test_a_parameter_that_takes_the_place_of_another_one_is_averaged():
    def on_rank(group):
        line = Line()
        average = GradientAverage(line.parameters, group)
        line.w = nn.Parameter(torch.zeros(()))
        loss = line(torch.tensor([1.0 + 2 * group.rank]))
        (loss + line.unused.sum()).backward()  # an old one gets a gradient, too
        gradients = [line.w.grad.item()]
        line.w = nn.Parameter(torch.zeros(()))
        average.watch()
        line(torch.tensor([10.0 + 2 * group.rank])).backward()
        average.close()
        return [*gradients, line.w.grad.item()]

    assert in_group(2, on_rank) == [[2.0, 11.0]] * 2


def test_a_parameter_that_is_frozen_for_some_backward_passes_goes_on_being_averaged():
    def work(rank, line, _):
        line(torch.tensor([1.0 + 2 * rank])).backward()
        line.w.requires_grad_(False)
        line.unused.sum().backward()
        line.unused.grad = None
        line.w.requires_grad_()
        line(torch.tensor([10.0 + 2 * rank])).backward()

    # 2 + 11
    assert averaged(2, work) == [13.0, 13.0]


def test_clipping_sees_the_averaged_gradient():
    def work(rank, line, _):
        line(torch.tensor([-8.0 if rank else 10.0])).backward()
        # The mean is 1, which is not above 2: nothing is clipped, although both local gradients would have been.
        nn.utils.clip_grad_norm_(line.parameters(), 2.0)

    assert averaged(2, work) == [1.0, 1.0]


def test_a_backward_pass_that_fails_does_not_spoil_the_next_one():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ArithmeticError("no")

    def work(rank, line, _):
        # w gets its gradient first: the average is announced when the pass breaks off.
        with pytest.raises(ArithmeticError):
            (Failing.apply(line.unused.sum()) * 0 + line.w).backward()
        line.zero_grad()
        line(torch.tensor([1.0 + rank])).backward()

    assert averaged(2, work) == [1.5, 1.5]


def test_nothing_is_averaged_any_more_after_close():
    def work(rank, line, average):
        average.close()
        line(torch.tensor([float(rank)])).backward()

    assert averaged(2, work) == [0.0, 1.0]


def test_a_rank_that_makes_no_backward_pass_is_a_timeout_in_backward():
    over = threading.Event()

    def on_rank(group):
        line = Line()
        average = GradientAverage(line.parameters, group)
        if group.rank == 0:
            try:
                line(torch.ones(1)).backward()
            finally:
                over.set()
        else:
            over.wait(60)  # in the group, but without a call
        return average

    error = in_group(2, on_rank, timeout_s=5.0)[0]
    assert isinstance(error, CallTimeout)
    assert "phase all_reduce" in str(error)
