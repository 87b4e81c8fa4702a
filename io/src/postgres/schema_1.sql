-- Virtual keys: hashes only. Times are Unix milliseconds.
CREATE TABLE tokentriage_keys (
    id          text PRIMARY KEY,
    hash        bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    node        text NOT NULL,
    name        text,
    created_ms  bigint NOT NULL,
    expires_ms  bigint,
    revoked_ms  bigint,
    created_by  text NOT NULL,
    revoked_by  text
);

-- Moves with every change of the keys, so that a replica that missed a notification finds out with a read of one row.
CREATE TABLE tokentriage_keys_version (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version   bigint NOT NULL
);
INSERT INTO tokentriage_keys_version (version) VALUES (0);

-- Rings for every change, also for one made by hand. The search path is the one of the migration: whoever changes a row
-- later may have another.
CREATE FUNCTION tokentriage_keys_changed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE tokentriage_keys_version SET version = version + 1;
    PERFORM pg_notify('tokentriage_keys', '');
    RETURN NULL;
END
$$;
CREATE TRIGGER tokentriage_keys_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tokentriage_keys
    FOR EACH STATEMENT EXECUTE FUNCTION tokentriage_keys_changed();

-- Who belongs to the fleet, for when the coordination store forgets. The newer word about a replica counts.
CREATE TABLE tokentriage_replicas (
    id        text PRIMARY KEY,
    as_of_us  bigint NOT NULL, -- its last heartbeat, or its removal, by the coordination store's clock
    entry     text             -- what is known of it, as JSON; null: it was removed
);
