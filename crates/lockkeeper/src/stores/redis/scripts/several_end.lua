  end)() end
  if count == 1 then return reply end
  all[each] = reply
end
return all
