#!/bin/bash
tr -s ' ' '\n' < text.txt | sort | uniq -c | sort -rn | head -n 3 | awk '{ print $2 }' > top.txt
