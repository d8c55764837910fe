#!/bin/bash
awk '{ count[$NF]++ } END { for (status in count) print status "," count[status] }' access.log | sort > status.csv
