"""Theory of position bias: rollouts predicted from the architecture, measured on real models, and
reproduced in small networks trained for the purpose."""
