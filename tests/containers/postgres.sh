set -e
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
# As the image does: with fsGroup a kubelet opens the folder to the group, and the server refuses it.
mkdir -p "$PGDATA" && chmod 00700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf %s "$POSTGRES_PASSWORD" > /tmp/password
    initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 \
        --encoding=UTF8 --locale=C.UTF-8
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$PGDATA" postgres
fi
exec postgres -D "$PGDATA" -k /tmp -h "*"
