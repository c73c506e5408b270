from torch.utils import dlpack as dlpack
