#!/bin/bash
tar -xzOf backup.tar.gz backup/deep/er/code.txt > code.txt
