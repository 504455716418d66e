from posgap.components.train_job.component import train_job

__all__ = ["train_job"]
