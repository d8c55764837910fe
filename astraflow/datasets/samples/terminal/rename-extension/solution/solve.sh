#!/bin/bash
for file in notes/*.txt; do mv "$file" "${file%.txt}.md"; done
