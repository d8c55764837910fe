#!/bin/bash
sed -n '/^\[server\]/,/^\[client\]/s/^port = //p' settings.ini > port.txt
