#!/bin/sh
# Starts the server; the secrets go from their files into its environment and its configuration, not into arguments.
set -eu
umask 077
secrets=${SECRETS:-/run/secrets}
password=$(cat "$secrets/postgres_password")
export MLFLOW_BACKEND_STORE_URI="postgresql://mlflow:${password}@postgres/mlflow"
MLFLOW_AUTH_ADMIN_USERNAME=admin
MLFLOW_AUTH_ADMIN_PASSWORD=$(cat "$secrets/admin_password")
MLFLOW_FLASK_SERVER_SECRET_KEY=$(cat "$secrets/session_key")
export MLFLOW_AUTH_ADMIN_USERNAME MLFLOW_AUTH_ADMIN_PASSWORD MLFLOW_FLASK_SERVER_SECRET_KEY
cat > /tmp/auth.ini <<END
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = postgresql://mlflow:${password}@postgres/mlflow
auth_cache_ttl_seconds = 60
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
END
export MLFLOW_AUTH_CONFIG_PATH=/tmp/auth.ini
# The names by which clients may call it; MLflow refuses all others, against DNS rebinding.
export MLFLOW_SERVER_ALLOWED_HOSTS="${MLFLOW_SERVER_ALLOWED_HOSTS:-mlflow.internal:5000,mlflow:5000,localhost:*,127.0.0.1:*}"
exec mlflow server --app-name basic-auth --host 0.0.0.0 --port 5000 --workers 2 --artifacts-destination "$ARTIFACTS"
