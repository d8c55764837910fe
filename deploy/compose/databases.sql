-- Databases of the service `database` of docker-compose.yml, created when its volume is new.
CREATE DATABASE fleet;
CREATE DATABASE page;
