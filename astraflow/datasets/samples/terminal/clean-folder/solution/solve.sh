#!/bin/bash
find build -name '*.tmp' -delete
find build -mindepth 1 -type d -empty -delete
