-- Of a database that MLflow 3.17 wrote: the three tables that are read, with one run.
CREATE TABLE "experiments" (
    experiment_id INTEGER NOT NULL,
    name VARCHAR(256) NOT NULL,
    artifact_location VARCHAR(256),
    lifecycle_stage VARCHAR(32),
    creation_time BIGINT,
    last_update_time BIGINT,
    workspace VARCHAR(63) DEFAULT 'default' NOT NULL,
    CONSTRAINT experiment_pk PRIMARY KEY (experiment_id),
    CONSTRAINT experiments_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')),
    CONSTRAINT uq_experiments_workspace_name UNIQUE (workspace, name)
);
CREATE TABLE "runs" (
    run_uuid VARCHAR(32) NOT NULL,
    name VARCHAR(250),
    source_type VARCHAR(20),
    source_name VARCHAR(500),
    entry_point_name VARCHAR(50),
    user_id VARCHAR(256),
    status VARCHAR(9),
    start_time BIGINT,
    end_time BIGINT,
    source_version VARCHAR(50),
    lifecycle_stage VARCHAR(20),
    artifact_uri VARCHAR(200),
    experiment_id INTEGER, deleted_time BIGINT,
    CONSTRAINT run_pk PRIMARY KEY (run_uuid),
    CONSTRAINT runs_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')),
    CONSTRAINT source_type CHECK (source_type IN ('NOTEBOOK', 'JOB', 'LOCAL', 'UNKNOWN', 'PROJECT')),
    FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id),
    CHECK (status IN ('SCHEDULED', 'FAILED', 'FINISHED', 'RUNNING', 'KILLED'))
);
CREATE TABLE "metrics" (
    "key" VARCHAR(250) NOT NULL,
    value FLOAT NOT NULL,
    timestamp BIGINT NOT NULL,
    run_uuid VARCHAR(32) NOT NULL,
    step BIGINT DEFAULT '0' NOT NULL,
    is_nan BOOLEAN DEFAULT '0' NOT NULL,
    CONSTRAINT metric_pk PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan),
    FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid),
    CHECK (is_nan IN (0, 1))
);
INSERT INTO experiments (experiment_id, name, lifecycle_stage) VALUES (0, 'Default', 'active');
INSERT INTO experiments (experiment_id, name, lifecycle_stage) VALUES (1, 'leaky', 'active');
INSERT INTO runs (run_uuid, name, status, start_time, end_time, experiment_id) VALUES ('c5dc571b9687427689c0eed497a31151', 'before-fix', 'FINISHED', 1795426388993, 1795426393201, 1);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('loss', 1.0, 1795426389623, 'c5dc571b9687427689c0eed497a31151', 0, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_megabytes', 1396.5, 1795426389627, 'c5dc571b9687427689c0eed497a31151', 0, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_percentage', 5.5, 1795426389627, 'c5dc571b9687427689c0eed497a31151', 0, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('rss_mb', 100.0, 1795426389733, 'c5dc571b9687427689c0eed497a31151', 0, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_megabytes', 1394.0, 1795426390257, 'c5dc571b9687427689c0eed497a31151', 1, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_percentage', 5.5, 1795426390257, 'c5dc571b9687427689c0eed497a31151', 1, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('loss', 0.5, 1795426390382, 'c5dc571b9687427689c0eed497a31151', 1, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('rss_mb', 108.0, 1795426390390, 'c5dc571b9687427689c0eed497a31151', 1, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_megabytes', 1394.1, 1795426390766, 'c5dc571b9687427689c0eed497a31151', 2, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_percentage', 5.5, 1795426390766, 'c5dc571b9687427689c0eed497a31151', 2, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('loss', 0.3333333333333333, 1795426391006, 'c5dc571b9687427689c0eed497a31151', 2, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('rss_mb', 116.0, 1795426391013, 'c5dc571b9687427689c0eed497a31151', 2, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_megabytes', 1394.1, 1795426391273, 'c5dc571b9687427689c0eed497a31151', 3, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_percentage', 5.5, 1795426391273, 'c5dc571b9687427689c0eed497a31151', 3, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('loss', 0.25, 1795426391734, 'c5dc571b9687427689c0eed497a31151', 3, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('rss_mb', 124.0, 1795426391750, 'c5dc571b9687427689c0eed497a31151', 3, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_megabytes', 1394.1, 1795426391794, 'c5dc571b9687427689c0eed497a31151', 4, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_percentage', 5.5, 1795426391794, 'c5dc571b9687427689c0eed497a31151', 4, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_megabytes', 1394.0, 1795426392307, 'c5dc571b9687427689c0eed497a31151', 5, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_percentage', 5.5, 1795426392307, 'c5dc571b9687427689c0eed497a31151', 5, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('loss', 0.2, 1795426392370, 'c5dc571b9687427689c0eed497a31151', 4, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('rss_mb', 132.0, 1795426392390, 'c5dc571b9687427689c0eed497a31151', 4, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_megabytes', 1393.8, 1795426392841, 'c5dc571b9687427689c0eed497a31151', 6, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('system/system_memory_usage_percentage', 5.5, 1795426392841, 'c5dc571b9687427689c0eed497a31151', 6, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('loss', 0.16666666666666666, 1795426393007, 'c5dc571b9687427689c0eed497a31151', 5, 0);
INSERT INTO metrics ("key", value, timestamp, run_uuid, step, is_nan) VALUES ('rss_mb', 140.0, 1795426393167, 'c5dc571b9687427689c0eed497a31151', 5, 0);
