#!/bin/bash
awk -F, 'NR == FNR { sum[$1] += $2; next } { print $2 "," sum[$1] + 0 }' orders.csv users.csv > totals.csv
