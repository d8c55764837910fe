#!/bin/bash
awk -F, '$2 == "south" { sum += $3 } END { print sum }' sales.csv > total.txt
