#!/bin/bash
chmod 600 secret.key
