#!/bin/bash
echo "Hello, terminal" > greeting.txt
