import torch


def make_grid(tensor, nrow=8, **_how):
    rows = [torch.cat(list(tensor[at : at + nrow]), dim=2) for at in range(0, len(tensor), nrow)]
    return torch.cat([row for row in rows if row.shape == rows[0].shape], dim=1)


def save_image(tensor, file, nrow=8):
    torch.save(make_grid(tensor, nrow) if tensor.dim() == 4 else tensor, file)
