# Passwords are made here and kept in Secrets Manager, and nowhere else: a write-only argument is not in the state. One
# that is to change gets another number in `passwords`.
locals {
  passwords = { mlflow-db = 1, mlflow-auth = 1, mlflow-pipeline = 1, mlflow-promote = 1 }

  secrets = {
    mlflow-db = { username = "mlflow", password = ephemeral.random_password.made["mlflow-db"].result }
    mlflow-auth = {
      MLFLOW_AUTH_ADMIN_PASSWORD     = ephemeral.random_password.made["mlflow-auth"].result
      MLFLOW_FLASK_SERVER_SECRET_KEY = ephemeral.random_password.cookies.result
    }
    mlflow-pipeline = {
      MLFLOW_TRACKING_USERNAME = "posgap-pipeline"
      MLFLOW_TRACKING_PASSWORD = ephemeral.random_password.made["mlflow-pipeline"].result
    }
    mlflow-promote = {
      MLFLOW_TRACKING_USERNAME = "posgap-promote"
      MLFLOW_TRACKING_PASSWORD = ephemeral.random_password.made["mlflow-promote"].result
    }
  }
}

ephemeral "random_password" "made" {
  for_each = local.passwords
  length   = 32
  special  = false
}

ephemeral "random_password" "cookies" {
  length  = 64
  special = false
}

# The token of the Hugging Face hub, `hub`, is yours to put in.
resource "aws_secretsmanager_secret" "all" {
  for_each = toset(concat(keys(local.passwords), ["hub"]))
  name     = "${var.cluster}/${each.key}"
}

resource "aws_secretsmanager_secret_version" "made" {
  for_each                 = local.passwords
  secret_id                = aws_secretsmanager_secret.all[each.key].id
  secret_string_wo         = jsonencode(local.secrets[each.key])
  secret_string_wo_version = each.value
}

# The database gets what was kept: another run makes other passwords, which are kept only where their number changes.
ephemeral "aws_secretsmanager_secret_version" "database" {
  secret_id = aws_secretsmanager_secret_version.made["mlflow-db"].secret_id
}
