"""What posgap needs to know of KFP, Argo and Trainer."""
