#!/bin/bash
find docs -path docs/archive -prune -o -type f -exec sed -i 's/\bcolour\b/color/g' {} +
