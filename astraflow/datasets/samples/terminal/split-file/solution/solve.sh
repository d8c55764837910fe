#!/bin/bash
for part in 1 2 3 4; do
    head -n $((part * 25)) numbers.txt | tail -n 25 > part-$part.txt
done
